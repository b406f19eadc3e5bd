// Two threads with a session each on one model: either gets what it gets alone.
//
//   sessions [CONFIG]
//
// Prints a line of token ids for every session, alone and beside the other.
#include "slipstream.hpp"

#include <cstdio>
#include <exception>
#include <thread>

using slipstream::Engine;
using slipstream::Event;

namespace {

using Ids = std::vector<std::uint32_t>;

const char *const PROMPTS[] = {
    R"("def total_price(items):\n    result = 0\n")",
    R"("static int sum(const int * values, int count) {\n    int total = 0;\n")",
};

/// Completes a prompt on an engine that others use too.
Ids complete(Engine &engine, const std::string &prompt)
{
    std::uint64_t id = engine.submit(SLIPSTREAM_ENDPOINT_COMPLETIONS,
                                     "{\"prompt\": " + prompt + ", \"max_tokens\": 24, \"temperature\": 0, \"seed\": 7, "
                                                                "\"stream\": true, \"return_token_ids\": true}");
    Ids ids;
    for (;;) {
        for (const Event &event : engine.poll(id)) {
            ids.insert(ids.end(), event.tokens.begin(), event.tokens.end());
            if (event.kind == SLIPSTREAM_KIND_ERROR) {
                throw std::runtime_error(event.json);
            }
            if (event.last()) {
                return ids;
            }
        }
    }
}

void print(const char *name, const Ids &ids)
{
    std::printf("%s", name);
    for (std::uint32_t id : ids) {
        std::printf(" %u", static_cast<unsigned>(id));
    }
    std::printf("\n");
}

int run(const char *config)
{
    slipstream::preflight(config);
    Engine opened(config);
    Engine engine = std::move(opened);
    Ids alone[2], beside[2];
    for (int i = 0; i < 2; i++) {
        alone[i] = complete(engine, PROMPTS[i]);
    }
    std::exception_ptr failed[2];
    std::thread threads[2];
    for (int i = 0; i < 2; i++) {
        threads[i] = std::thread([&, i] {
            try {
                beside[i] = complete(engine, PROMPTS[i]);
            } catch (...) {
                failed[i] = std::current_exception();
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (const std::exception_ptr &error : failed) {
        if (error) {
            std::rethrow_exception(error);
        }
    }
    for (int i = 0; i < 2; i++) {
        print("alone", alone[i]);
        print("beside", beside[i]);
    }
    try {
        Engine missing(R"({"model": "no-such-model.gguf"})");
    } catch (const slipstream::Error &error) {
        std::printf("refused %d %s\n", static_cast<int>(error.status()), error.what());
    }
    return alone[0] == beside[0] && alone[1] == beside[1] ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        return run(argc > 1 ? argv[1] : "");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
