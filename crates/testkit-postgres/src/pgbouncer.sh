# Runs one PgBouncer for the process at the other end of standard input. When the input closes, also because that process
# was killed, it ends PgBouncer and removes its folder, so that nothing is left behind.
program=$1
folder=$2
trap '' HUP INT PIPE
"$program" "$folder/pgbouncer.ini" >"$folder/log" 2>&1 &
while read -r _; do :; done
kill "$!"
wait "$!"
rm -rf "$folder"
