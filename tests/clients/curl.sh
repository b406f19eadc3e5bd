#!/usr/bin/env bash
# curl against the scripted target: what a person types, and what only shows at this level.
set -euo pipefail
url=$1
fail() { echo "curl.sh: $*" >&2; exit 1; }

[ "$(curl -sf "$url/health")" = '{"status":"ok"}' ] || fail "health"
body='{"messages":[{"role":"user","content":"Say it plainly"}],"stream":true,"stream_options":{"include_usage":true}}'
stream=$(curl -sfN "$url/v1/chat/completions" -d "$body")
[ "$(tail -n 1 <<<"$stream")" = 'data: [DONE]' ] || fail "a stream ends with [DONE]"
grep -q '"finish_reason":"stop"' <<<"$stream" || fail "a stream says why it ended"
[ "$(grep -c '"usage":{' <<<"$stream")" = 1 ] || fail "usage is said once"
head=$(curl -sI "$url/v1/models")
grep -qi '^x-request-id: req_' <<<"$head" || fail "answers have a name"
code=$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"messages":')
[ "$code" = 400 ] || fail "bad JSON is 400, not $code"
code=$(curl -s -o /dev/null -w '%{http_code}' -X DELETE "$url/v1/models")
[ "$code" = 405 ] || fail "a wrong method is 405, not $code"
echo "curl: health, a stream, names and errors are as they should be"
