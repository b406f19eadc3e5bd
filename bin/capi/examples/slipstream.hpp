// slipstream.hpp: slipstream.h for C++17. A handle closes itself, failures are exceptions, events own their text.
#ifndef SLIPSTREAM_HPP
#define SLIPSTREAM_HPP

#include "slipstream.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream {

/// A call that failed: its status, and the library's words.
class Error : public std::runtime_error {
public:
    Error(slipstream_status status, const std::string &text) : std::runtime_error(text), status_(status) {}

    slipstream_status status() const noexcept { return status_; }

private:
    slipstream_status status_;
};

namespace detail {

/// Calls a function that fills a buffer, with as large a one as it asks for.
template <typename Fill> std::pair<slipstream_status, std::string> text(Fill fill)
{
    std::string out(1024, '\0');
    for (;;) {
        std::size_t length = 0;
        slipstream_status status = fill(out.data(), out.size(), &length);
        if (status != SLIPSTREAM_STATUS_TOO_SMALL) {
            out.resize(status == SLIPSTREAM_STATUS_OK ? length : 0);
            return {status, std::move(out)};
        }
        out.resize(length);
    }
}

inline void check(slipstream_status status)
{
    if (status != SLIPSTREAM_STATUS_OK) {
        throw Error(status, text([](char *at, std::size_t size, std::size_t *length) {
                                return slipstream_last_error(at, size, length);
                            }).second);
    }
}

} // namespace detail

/// An event with its own text and ids. See slipstream_event.
struct Event {
    std::uint64_t request = 0;
    std::uint64_t sequence = 0;
    slipstream_kind kind = SLIPSTREAM_KIND_CHUNK;
    std::uint32_t status = 0;
    std::uint32_t choice = 0;
    std::uint32_t pages_held = 0;
    std::uint32_t pages_free = 0;
    std::string json;
    std::vector<std::uint32_t> tokens;

    /// Nothing of the request but pages follows.
    bool last() const noexcept { return kind != SLIPSTREAM_KIND_CHUNK && kind != SLIPSTREAM_KIND_PAGES; }
};

/// What slipstream_preflight returns: JSON.
inline std::string preflight(std::string_view config)
{
    auto [status, report] = detail::text([&](char *at, std::size_t size, std::size_t *length) {
        return slipstream_preflight(config.data(), config.size(), at, size, length);
    });
    detail::check(status);
    return report;
}

/// An open model. It can be moved and not copied, and closes at its end. Several threads may use one.
class Engine {
public:
    /// `config` as in slipstream_open; empty is the built-in model.
    explicit Engine(std::string_view config = {})
    {
        detail::check(slipstream_open(config.data(), config.size(), &handle_));
    }

    Engine(Engine &&other) noexcept : handle_(std::exchange(other.handle_, 0)) {}

    Engine &operator=(Engine &&other) noexcept
    {
        if (this != &other) {
            close();
            handle_ = std::exchange(other.handle_, 0);
        }
        return *this;
    }

    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    ~Engine() { close(); }

    /// Ends it now. Does nothing the second time.
    void close() noexcept
    {
        if (handle_ != 0) {
            slipstream_close(std::exchange(handle_, 0));
        }
    }

    /// The number that the C functions take.
    std::uint64_t handle() const noexcept { return handle_; }

    /// Model, slots, pages, workers: JSON.
    std::string about() const
    {
        auto [status, text] = detail::text([&](char *at, std::size_t size, std::size_t *length) {
            return slipstream_about(handle_, at, size, length);
        });
        detail::check(status);
        return text;
    }

    /// Queues the JSON of an endpoint.
    std::uint64_t submit(slipstream_endpoint endpoint, std::string_view json)
    {
        return submit(endpoint, json, nullptr, 0);
    }

    /// Queues a prompt of token ids; `options` are the other fields of a completion.
    std::uint64_t submit(const std::vector<std::uint32_t> &prompt, std::string_view options = {})
    {
        return submit(SLIPSTREAM_ENDPOINT_TOKENS, options, prompt.data(), prompt.size());
    }

    /// Takes what there is, of `request` or of all for 0; waits for the first event, without a timeout for ever.
    std::vector<Event> poll(std::uint64_t request = 0, std::optional<std::chrono::milliseconds> timeout = std::nullopt)
    {
        std::vector<slipstream_event> events(64);
        std::vector<char> bytes(64 * 1024);
        std::vector<std::uint32_t> tokens(4096);
        for (;;) {
            slipstream_batch batch{};
            batch.struct_size = sizeof batch;
            batch.event_size = sizeof(slipstream_event);
            batch.events = events.data();
            batch.events_max = events.size();
            batch.bytes = bytes.data();
            batch.bytes_max = bytes.size();
            batch.tokens = tokens.data();
            batch.tokens_max = tokens.size();
            std::uint64_t wait = SLIPSTREAM_FOREVER;
            if (timeout) {
                // A time that is over waits for nothing.
                wait = static_cast<std::uint64_t>(std::max<std::chrono::milliseconds::rep>(timeout->count(), 0));
            }
            slipstream_status status = slipstream_poll(handle_, request, wait, &batch);
            if (status == SLIPSTREAM_STATUS_TOO_SMALL) {
                bytes.resize(std::max(bytes.size(), batch.bytes_len));
                tokens.resize(std::max(tokens.size(), batch.tokens_len));
                continue;
            }
            detail::check(status);
            std::vector<Event> out;
            out.reserve(batch.events_len);
            for (std::size_t i = 0; i < batch.events_len; i++) {
                const slipstream_event &e = events[i];
                Event event{e.request, e.sequence, e.kind, e.status, e.choice, e.pages_held, e.pages_free, {}, {}};
                if (e.json_len > 0) {
                    event.json.assign(e.json, e.json_len);
                }
                event.tokens.assign(e.tokens, e.tokens + e.tokens_len);
                out.push_back(std::move(event));
            }
            return out;
        }
    }

    /// Ends a request; one event says so.
    void cancel(std::uint64_t request) { detail::check(slipstream_cancel(handle_, request)); }

    slipstream_stats stats() const
    {
        slipstream_stats stats{};
        stats.struct_size = sizeof stats;
        detail::check(slipstream_get_stats(handle_, &stats));
        return stats;
    }

private:
    std::uint64_t submit(slipstream_endpoint endpoint, std::string_view json, const std::uint32_t *tokens,
                         std::size_t tokens_len)
    {
        slipstream_request request{};
        request.struct_size = sizeof request;
        request.endpoint = static_cast<std::uint32_t>(endpoint);
        request.json = json.data();
        request.json_len = json.size();
        request.tokens = tokens;
        request.tokens_len = tokens_len;
        std::uint64_t id = 0;
        detail::check(slipstream_submit(handle_, &request, &id));
        return id;
    }

    std::uint64_t handle_ = 0;
};

} // namespace slipstream

#endif
