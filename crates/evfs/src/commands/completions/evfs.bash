# Completion of evfs for bash 4 or later. The program itself finds the candidates.

_evfs() {
    local rest=${COMP_LINE:0:COMP_POINT} word current prefix candidate i
    local -a words=() found=()
    COMPREPLY=()

    # Bash separates words at `=` and `:` too; the program needs them whole.
    for (( i = 0; i <= COMP_CWORD; i++ )); do
        word=${COMP_WORDS[i]}
        if (( i == 0 )) || [[ $rest == [[:space:]]* ]]; then
            rest=${rest#"${rest%%[![:space:]]*}"}
            words+=("")
        fi
        if (( i == COMP_CWORD )); then
            word=$rest
        fi
        words[${#words[@]}-1]+=$word
        rest=${rest#"$word"}
    done

    # Words with quotes, escapes and variables are left to bash, which completes them as files.
    current=${words[${#words[@]}-1]}
    if [[ $current == *[\'\"\\\$\`~]* ]]; then
        compopt -o default 2>/dev/null
        return 0
    fi

    # Bash replaces only the part behind the last separator, and quotes nothing.
    prefix=${current%"$2"}
    mapfile -t found < <(command evfs __complete bash -- "${words[@]}" 2>/dev/null)
    for candidate in "${found[@]}"; do
        candidate=${candidate#"$prefix"}
        if [[ $candidate ]]; then
            printf -v candidate %q "$candidate"
            COMPREPLY+=("$candidate")
        fi
    done
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -o nosort -F _evfs evfs 2>/dev/null || complete -F _evfs evfs
