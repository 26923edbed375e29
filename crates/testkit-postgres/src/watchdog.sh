# Runs one PostgreSQL server for the process at the other end of standard input. It obeys one order a line and answers
# each with "done" or "failed". When the input closes, also because that process was killed, it stops the server and
# removes its folder, so that nothing is left behind.
bin=$1
folder=$2
data=$folder/data
trap '' HUP INT PIPE

postmaster() { head -n 1 "$data/postmaster.pid"; }

children() {
    if [ -d /proc/self ]; then
        for stat in /proc/[0-9]*/stat; do
            read -r child _ _ parent _ <"$stat" && [ "$parent" = "$1" ] && echo "$child"
        done
    else
        ps -A -o pid= -o ppid= | while read -r child parent; do
            [ "$parent" = "$1" ] && echo "$child"
        done
    fi
    true
}

create() {
    "$bin/initdb" --username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync -D "$data" >"$folder/log" 2>&1
}

start() { "$bin/pg_ctl" -D "$data" -l "$folder/log" -w -t 60 start; }

# The postmaster first, so that no backend is born meanwhile. Each backend is its own process group.
pause() {
    server=$(postmaster) && kill -STOP "$server" || return
    for child in $(children "$server"); do kill -STOP "$child"; done
    true
}

resume() {
    server=$(postmaster) || return
    for child in $(children "$server"); do kill -CONT "$child"; done
    kill -CONT "$server"
}

stop() {
    [ -e "$data/postmaster.pid" ] || return 0
    resume
    "$bin/pg_ctl" -D "$data" -m immediate -w stop
}

while read -r order; do
    case $order in
    create | start | pause | resume | stop) "$order" >/dev/null 2>&1 && echo done || echo failed ;;
    *) echo failed ;;
    esac
done
stop >/dev/null 2>&1
rm -rf "$folder"
