# Writes random bytes over the memory that programs of this pod share with the engine, doorbells and rings, while their work
# requests are under way. Goes on until /dev/shm/enough is there.
set -euo pipefail
port=18600
listens=$(printf ':%04X .* 0A ' "$port")
times=0

# memory PROGRAM: the file by which it has that memory, as soon as it has.
memory() {
    while kill -0 "$1" 2>/dev/null; do
        for file in /proc/"$1"/fd/*; do
            case "$(readlink "$file")" in
                *memfd:weft-device*)
                    echo "$file"
                    return
                    ;;
            esac
        done
    done
}

# scribble BYTES COUNT PLACE
scribble() {
    for file in "$of_server" "$of_client"; do
        # A program whose device has failed may have ended.
        if dd if=/dev/urandom of="$file" bs="$1" count="$2" seek="$3" conv=notrunc 2>/dev/null; then
            times=$((times + 1))
        fi
    done
}

while [ ! -e /dev/shm/enough ]; do
    ibv_rc_pingpong -e -g 0 -n 1000000 -p "$port" >/dev/null 2>&1 &
    server=$!
    while kill -0 "$server" 2>/dev/null && ! grep -q "$listens" /proc/net/tcp /proc/net/tcp6; do usleep 10000; done
    ibv_rc_pingpong -e -g 0 -n 1000000 -p "$port" 127.0.0.1 >/dev/null 2>&1 &
    client=$!
    of_server=$(memory "$server")
    of_client=$(memory "$client")
    # Single words, as most of what is there is good then; and everything.
    for word in $(seq 50); do scribble 8 1 $((RANDOM % 2048)); done
    scribble 65536 64 0
    if ! kill "$server" "$client" 2>/dev/null; then echo "a program has ended" >&2; fi
    wait
    echo "$times" >/dev/shm/scribbled
done
echo "scribbled $times times"
