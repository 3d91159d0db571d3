#!/bin/sh
# Started by cron every five minutes. At most one runs, and one that lost its lease publishes nothing.
set -u
PATH=$HOME/.cargo/bin:$HOME/bin:$PATH # cron's own is short
# All that must exclude each other name the same store. The default one follows HOME.
export ASTER_STORE=sqlite:/var/lib/nightly-report/leases.db

aster run --ttl 1m report/nightly -- sh -eu -c '
  report=$(mktemp)
  trap "rm -f \"$report\"" EXIT
  trap "exit 143" TERM INT HUP # else dash leaves the file when it is ended
  make-report > "$report"      # takes its time, and may be paused
  aster put --file "$report"   # rejected if another has taken over meanwhile
'
code=$?

# 75: the one before still runs, which is no failure. 76: this one lost its lease and was ended.
[ "$code" -eq 75 ] && exit 0
exit "$code"
