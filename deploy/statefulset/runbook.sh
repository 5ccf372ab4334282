#!/usr/bin/env bash
# The runbook (README.md beside this file), step by step, with processes on this machine in the place of pods: the same
# binary, the settings of base/settings.env, certificates of a CA made on the spot. A directory stands for a volume, SIGTERM
# for a pod's end. Each step is followed by what must hold: quorum, members, equal digests on all nodes, and every
# acknowledged report still found. Needs bash, openssl and curl; takes about two minutes.
#
#   deploy/statefulset/runbook.sh [BINARY]      default: target/debug/prefixd
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:-$here/../../target/debug/prefixd}")
work=$(mktemp -d)
bind=$(("$$" % 200 + 1))
# A loopback address of this run alone, so that the ports of the manifests can be used as they are.
host() { printf '127.77.%d.%d' "$bind" "$(($1 + 1))"; }
declare -A pid=()

cleanup() {
    local code=$?
    if [ "$code" -ne 0 ]; then echo "failed; logs and disks are in $work" >&2; fi
    # The shell would tell of each that was killed.
    exec 2>/dev/null
    for n in "${!pid[@]}"; do kill -KILL "${pid[$n]}" || true; done
    wait || true
    if [ "$code" -eq 0 ]; then rm -rf "$work"; fi
}
trap cleanup EXIT

step() { printf '\n== %s (%s)\n' "$1" "$(date +%T)"; }
say() { printf '   %s\n' "$*"; }
fail() { printf 'runbook: %s\n' "$*" >&2; exit 1; }

# Waits up to 60 seconds for a command to succeed.
await() {
    local until=$((SECONDS + 60))
    until "$@" >"$work/last" 2>&1; do
        if [ "$SECONDS" -ge "$until" ]; then cat "$work/last" >&2; fail "still not so after a minute: $*"; fi
        sleep 0.1
    done
}

# --- certificates -------------------------------------------------------------------------------------------------

# authority: one CA for nodes and operators.
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=node-ca \
        -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
}

# certificate DAYS: a certificate of all nodes into $work/tls, its files swapped in one by one, as kubelets may.
certificate() {
    local names="" n
    for n in 0 1 2 3 4; do names+="IP:$(host $n),"; done
    mkdir -p "$work/tls" "$work/new"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=prefixd-node \
        -keyout "$work/new/tls.key" -out "$work/new/tls.csr" 2>/dev/null
    openssl x509 -req -in "$work/new/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -days "$1" -out "$work/new/tls.crt" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth' "${names%,}") 2>/dev/null
    cp "$work/ca.crt" "$work/new/ca.crt"
    for file in ca.crt tls.crt tls.key; do mv "$work/new/$file" "$work/tls/$file"; done
}

# --- nodes --------------------------------------------------------------------------------------------------------

peers=""
bootstrap=""
# list N: the peer list of N nodes.
list() {
    peers=""
    for ((i = 0; i < $1; i++)); do peers+="prefixd-$i=$(host $i):9091,"; done
    peers=${peers%,}
}

# The settings of the manifests, as node N has them; for a subshell that then is the binary.
settings() {
    local n=$1
    set -a
    # shellcheck source=base/settings.env
    . "$here/base/settings.env"
    PREFIXD_PEERS=$peers
    PREFIXD_BOOTSTRAP=$bootstrap
    PREFIXD_DATA_DIR=$work/data-prefixd-$n
    PREFIXD_GRPC_ADDR=$(host "$n"):9090
    PREFIXD_HTTP_ADDR=$(host "$n"):8080
    PREFIXD_INTERNAL_ADDR=127.77.$bind.$((n + 101)):8081
    PREFIXD_NODE_ADDR=$(host "$n"):9091
    PREFIXD_NODE_TLS_CERT_FILE=$work/tls/tls.crt
    PREFIXD_NODE_TLS_KEY_FILE=$work/tls/tls.key
    PREFIXD_NODE_TLS_CA_FILE=$work/tls/ca.crt
    PREFIXD_ADMIN=$(host "$n"):9091
    PREFIXD_CTL_TLS_CA=$work/tls/ca.crt
    PREFIXD_CTL_TLS_CERT=$work/tls/tls.crt
    PREFIXD_CTL_TLS_KEY=$work/tls/tls.key
}

as_node() {
    (settings "$1"; shift; exec "$binary" "$@")
}

start() {
    local n
    for n in "$@"; do
        (settings "$n"; exec "$binary" serve "--node-name=prefixd-$n" "--node-advertise-addr=$(host "$n"):9091") \
            >>"$work/prefixd-$n.log" 2>&1 &
        pid[$n]=$!
    done
}

# stop N…: SIGTERM, as at a pod's end; the grace period is the StatefulSet's.
stop() {
    local n until
    for n in "$@"; do kill -TERM "${pid[$n]}"; done
    for n in "$@"; do
        until=$((SECONDS + 30))
        while kill -0 "${pid[$n]}" 2>/dev/null; do
            [ "$SECONDS" -lt "$until" ] || fail "prefixd-$n outlives terminationGracePeriodSeconds"
            sleep 0.05
        done
        wait "${pid[$n]}" || fail "prefixd-$n did not end in order: $(tail -1 "$work/prefixd-$n.log")"
        unset "pid[$n]"
    done
}

ctl() {
    local n=$1
    shift
    as_node "$n" ctl "$@"
}

# has_voters COUNT: every running node is ready, knows a leader, and lists so many voters and no learner.
has_voters() {
    local n
    for n in "${!pid[@]}"; do
        curl -sf "http://$(host "$n"):8080/readyz" >/dev/null || { echo "prefixd-$n is not ready"; return 1; }
        ctl "$n" --json status >"$work/status-$n" || return 1
        [ "$(grep -c '"voter": true' "$work/status-$n")" -eq "$1" ] || { cat "$work/status-$n"; return 1; }
        ! grep -q '"voter": false' "$work/status-$n" || return 1
    done
}

field() { sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$work/status-$1"; }

# agree: all running nodes have the same digest at the same index.
agree() {
    local n seen=""
    for n in "${!pid[@]}"; do
        ctl "$n" --json status >"$work/status-$n" || return 1
        local now
        now="$(field "$n" applied_index) $(field "$n" digest)"
        [ -z "$seen" ] || [ "$seen" = "$now" ] || { echo "prefixd-$n: $now, another: $seen"; return 1; }
        seen=$now
    done
    echo "$seen"
}

reported=0
# margin: what the leader shows as the number of voters that may still be lost.
margin() {
    local n
    for n in "${!pid[@]}"; do
        curl -sf "http://$(host "$n"):8080/metrics" | sed -n 's/^prefixd_raft_quorum_margin //p'
    done | head -1
}
has_margin() { [ "$(margin)" = "$1.0" ]; }

# report N: one more prompt of four blocks, acknowledged by a node.
report() {
    local prompt
    prompt=$(printf '%04x' "$reported")
    "$binary" report --server "$(host "$1"):9090" --tenant acme --model llama --scheme vllm --replica "engine-$((reported % 3))" \
        --blocks "${prompt}01,${prompt}02,${prompt}03,${prompt}04" --block-tokens 64 >/dev/null || return 1
    reported=$((reported + 1))
}

# finds N: a node answers with the last, the first and a middle one of all that was acknowledged.
finds() {
    local p prompt
    for p in 0 $((reported / 2)) $((reported - 1)); do
        prompt=$(printf '%04x' "$p")
        "$binary" lookup --server "$(host "$1"):9090" --tenant acme --model llama --scheme vllm \
            --blocks "${prompt}01,${prompt}02,${prompt}03,${prompt}04" --block-tokens 64 >"$work/answer"
        if ! grep -q PREFIX_MATCH "$work/answer" || ! grep -q "engine-$((p % 3))" "$work/answer"; then
            echo "prefixd-$1 lost prompt $p: $(cat "$work/answer")"
            return 1
        fi
    done
}

# holds VOTERS: what must be after every step; then reports go on.
holds() {
    local n
    await has_voters "$1"
    await agree
    say "$1 voters, index and digest $(cat "$work/last")"
    for n in "${!pid[@]}"; do finds "$n" || fail "what was acknowledged is lost"; done
    for n in "${!pid[@]}"; do await report "$n"; done
}

# roll COUNT: from the highest number down, each once the one before is ready.
roll() {
    local n other
    for ((n = $1 - 1; n >= 0; n--)); do
        [ -n "${pid[$n]:-}" ] || continue
        other=$(((n + 1) % $1))
        stop "$n"
        finds "$other" || fail "prefixd-$other does not answer while prefixd-$n is down"
        start "$n"
        await has_voters "$2"
    done
}

# --- the steps ----------------------------------------------------------------------------------------------------

step "Install"
authority
certificate 7
list 3
bootstrap=peers
start 0 1 2
await has_voters 3
for _ in $(seq 20); do report 0; done
holds 3
await has_margin 1
bootstrap=never

step "Roll"
ctl 0 transfer-leader | sed 's/^/   /'
roll 3 3
holds 3

step "Scale up"
list 5
start 3 4
# The members learn the new list as they roll; the new nodes are let in by a leader that has it.
for n in 2 1 0; do
    stop "$n"
    start "$n"
    await curl -sf "http://$(host $n):8080/readyz"
done
holds 5

step "Scale down"
ctl 0 member list | sed 's/^/   /'
ctl 0 member remove prefixd-4 | sed 's/^/   /'
ctl 0 member remove prefixd-3 | sed 's/^/   /'
stop 4 3
rm -rf "$work/data-prefixd-4" "$work/data-prefixd-3"
list 3
roll 3 3
holds 3

step "Back up"
ctl 1 backup "$work/today.pfbk" | sed 's/^/   /'
"$binary" backup verify "$work/today.pfbk" | sed 's/^/   /'
"$binary" backup inspect "$work/today.pfbk" >"$work/inspected"
backed_up=$reported

step "Lose a disk"
stop 1
rm -rf "$work/data-prefixd-1"
report 0
await has_margin 0
say "one is missing: the margin is $(margin)"
start 1
holds 3
await has_margin 1

step "Rotate certificates"
not_after() { curl -sf "http://$(host 0):8080/metrics" | sed -n 's/^prefixd_tls_certificate_not_after_seconds{port="node"} //p'; }
old=$(not_after)
certificate 14
renewed() { [ "$(not_after)" != "$old" ]; }
await renewed
say "the node port's certificate ended at $old, now at $(not_after)"
curl -sf "http://$(host 0):8080/metrics" | grep '^prefixd_file_reloads_total' | sed 's/^/   /'
roll 3 3
holds 3

step "Lose a quorum"
before=$(field 0 cluster_id)
stop 0 1 2
rm -rf "$work/data-prefixd-1" "$work/data-prefixd-2"
if as_node 0 recover --data-dir "$work/data-prefixd-0" >"$work/survey" 2>&1; then fail "recover did something without --yes"; fi
sed 's/^/   /' "$work/survey"
as_node 0 recover --data-dir "$work/data-prefixd-0" --yes | sed 's/^/   /'
start 0 1 2
holds 3
[ "$(field 0 cluster_id)" != "$before" ] || fail "the recovered cluster kept its id"

step "Restore a backup"
stop 0 1 2
for n in 0 1 2; do mv "$work/data-prefixd-$n" "$work/old-$n"; done
as_node 0 restore "$work/today.pfbk" --data-dir "$work/data-prefixd-0" --node-name prefixd-0 | tee "$work/restored" | sed 's/^/   /'
digest=$(sed -n 's/^digest *\([0-9a-f]*\).*/\1/p' "$work/restored")
grep -q "$digest" "$work/inspected" || fail "the restored digest is not the backup's"
reported=$backed_up
start 0 1 2
holds 3

step "done: every step held"
