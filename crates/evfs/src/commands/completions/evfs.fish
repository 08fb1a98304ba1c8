# Completion of evfs for fish. The program itself finds the candidates.

function __evfs_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    command evfs __complete fish -- $words "$current" 2>/dev/null
end

complete --command evfs --keep-order --no-files --arguments '(__evfs_complete)'
