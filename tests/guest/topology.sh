# What each processor says about the cells of the machine, one line each.
set -e
for cpu in 0 1 2; do taskset $((1 << cpu)) topology; done
