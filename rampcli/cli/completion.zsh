#compdef rampcli
_rampcli_complete() {
    local -a open closed
    local reply
    for reply in "${(@f)$(rampcli __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}"; do
        if [[ -z $reply ]]; then
            continue
        elif [[ $reply == *[=./] ]]; then
            open+=("$reply")
        else
            closed+=("$reply")
        fi
    done
    if (( $#open + $#closed )); then
        compadd -S '' -- "${open[@]}"
        compadd -- "${closed[@]}"
    else
        _files
    fi
}
compdef _rampcli_complete rampcli
