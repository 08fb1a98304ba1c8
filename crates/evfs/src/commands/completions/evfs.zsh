#compdef evfs

# Completion of evfs for zsh. The program itself finds the candidates.

_evfs() {
    local line
    local -a lines whole open
    local -i none=1

    # Words with quotes, escapes and variables are completed as files.
    if [[ $PREFIX == *[\'\"\\\$\`~]* ]]; then
        _files
        return
    fi
    lines=("${(@f)$(command evfs __complete zsh -- "${(@)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
    for line in $lines; do
        case $line in
            # A value or the rest of a path follows.
            +*) open+=("${line#+}") ;;
            -*) whole+=("${line#-}") ;;
        esac
    done
    if (( $#whole )); then
        _describe -V evfs whole && none=0
    fi
    if (( $#open )); then
        _describe -V evfs open -S '' && none=0
    fi
    return none
}

if [[ ${funcstack[1]} == _evfs ]]; then
    _evfs "$@"
elif (( $+functions[compdef] )); then
    compdef _evfs evfs
fi
