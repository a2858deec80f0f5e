_rampcli_complete() {
    # bash also splits words at characters such as = and :. Join the pieces that no blank separates.
    local words=() rest=$COMP_LINE piece blank i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        blank=${rest%%[![:space:]]*}
        rest=${rest#"$blank"}
        rest=${rest#"$piece"}
        if [[ $i -eq 0 || -n $blank || (-z $piece && ${COMP_WORDS[i - 1]} != [=:]*) ]]; then
            words+=("$piece")
        else
            words[-1]+=$piece
        fi
    done
    local word=${words[-1]} shown=${COMP_WORDS[COMP_CWORD]}
    if [[ $shown == [=:]* ]]; then shown=; fi
    local prefix=${word%"$shown"} reply
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("${reply#"$prefix"}")
        if [[ $reply == *[=./] ]]; then compopt -o nospace; fi
    done < <(rampcli __complete "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _rampcli_complete rampcli
