// Any bytes are either a recipe that saves and reads back to itself, or a ConfigError; never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/plan/rules.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  config::RunConfig run;
  try {
    config::read_toml(config::fields_of(run), text, "input");
    const std::string saved = config::save_toml(run);
    config::RunConfig again;
    config::read_toml(config::fields_of(again), saved, "saved");
    if (config::save_toml(again) != saved) std::abort();
    run.train.train_iters %= 1000;  // the samples of a batch that grows are counted step by step
    plan::resolve(run, {.tokenizer_vocab = 1000});
  } catch (const ConfigError&) {
  }
  return 0;
}
