# Prints COUNT times the file PIECE, each with its number before it.
#
#   whole.sh PIECE COUNT
set -e
i=0
while [ $i -lt "$2" ]; do
  printf %08d $i
  cat "$1"
  i=$((i + 1))
done
