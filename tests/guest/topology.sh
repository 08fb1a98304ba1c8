# What each processor says about the cells of the machine, one line each, and then where the pages of
# the file cache lie.
set -e
for cpu in 0 1 2; do taskset $((1 << cpu)) topology; done
placement
