// The C++ wrapper as C++ treats it: moves, exceptions, times that are over.
//
//   wrapper CONFIG
//
// Ends well if every handle is closed when its owner has gone, and by no one else.
#include "../../../bin/capi/examples/slipstream.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>

using slipstream::Engine;

static_assert(!std::is_copy_constructible_v<Engine> && !std::is_copy_assignable_v<Engine>);
static_assert(std::is_nothrow_move_constructible_v<Engine> && std::is_nothrow_move_assignable_v<Engine>);
static_assert(std::is_nothrow_destructible_v<Engine>);

namespace {

void expect(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

bool is_open(std::uint64_t handle)
{
    slipstream_stats stats{};
    stats.struct_size = sizeof stats;
    return slipstream_get_stats(handle, &stats) == SLIPSTREAM_STATUS_OK;
}

template <typename Call> slipstream_status failure(Call call)
{
    try {
        call();
    } catch (const slipstream::Error &error) {
        expect(error.what()[0] != '\0', "a failure without words");
        return error.status();
    }
    return SLIPSTREAM_STATUS_OK;
}

} // namespace

int main(int argc, char **argv)
{
    const char *config = argc > 1 ? argv[1] : "";
    std::uint64_t first, second;
    {
        Engine a(config), b(config);
        first = a.handle(), second = b.handle();
        Engine c(std::move(a));
        expect(c.handle() == first && a.handle() == 0 && is_open(first), "a move takes the handle along");
        expect(failure([&] { a.about(); }) == SLIPSTREAM_STATUS_HANDLE, "what was moved from is no handle");
        Engine &same = c;
        c = std::move(same);
        expect(is_open(first), "moved to itself it stays");
        c = std::move(b);
        expect(!is_open(first) && is_open(second) && c.handle() == second, "what a move replaces is closed");
        a.close();
    }
    expect(!is_open(second), "its end closes it");
    std::uint64_t thrown = 0;
    try {
        Engine engine(config);
        thrown = engine.handle();
        expect(engine.poll(0, std::chrono::milliseconds(-5)).empty(), "a time that is over waits for nothing");
        expect(engine.poll(0, std::chrono::milliseconds::min()).empty(), "however long it is over");
        expect(failure([&] { engine.poll(99); }) == SLIPSTREAM_STATUS_NO_REQUEST, "no such request");
        expect(failure([&] { engine.cancel(99); }) == SLIPSTREAM_STATUS_NO_REQUEST, "nothing to cancel");
        std::string nul = std::string("{\"content\": \"a") + '\0' + "b\"}";
        std::uint64_t id = engine.submit(SLIPSTREAM_ENDPOINT_TOKENIZE, nul);
        expect(engine.poll(id).at(0).status == 400, "a 0 in JSON is an error, and not its end");
        throw std::runtime_error("the host's own");
    } catch (const std::runtime_error &) {
    }
    expect(thrown != 0 && !is_open(thrown), "an exception that passes closes it");
    std::vector<Engine> many;
    for (int i = 0; i < 3; i++) {
        many.emplace_back(config);
    }
    auto owned = std::make_unique<Engine>(std::move(many.front()));
    many.clear();
    expect(is_open(owned->handle()), "one of many");
    expect(failure([] { Engine bad("{\"ctx_size\": 1}"); }) == SLIPSTREAM_STATUS_USAGE, "no handle was opened");
    return 0;
}
