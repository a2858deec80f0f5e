function __rampcli_complete
    set -l words (commandline -opc) (commandline -ct)
    rampcli __complete $words[2..-1] 2>/dev/null
end
complete -c rampcli -f -a '(__rampcli_complete)'
complete -c rampcli -n 'contains -- (commandline -opc)[-1] --config-dir -cd --config-path -cp --plot --measured' -F
