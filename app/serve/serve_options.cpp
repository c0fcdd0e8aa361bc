#include "app/serve/serve_options.h"

#include <algorithm>

#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/environment.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron serve MODEL [OPTION]…\n\n"
    "Answers requests over HTTP as OpenAI's API has them: /v1/completions, /v1/chat/completions, /v1/models, /health,\n"
    "/metrics, and a page at /; of an encoder (BERT) /v1/embeddings. MODEL: a run's folder, its checkpoints or one of\n"
    "them, a Hugging Face folder, or a GGUF file.\n"
    "SIGTERM ends it when the texts under way are written. docs/serving.md has examples.";

constexpr const char* kTokenVariable = "MEGATRON_SERVE_TOKEN";

}  // namespace

std::string token_of_environment() {
  const auto variables = process_environment();
  const auto found = variables.find(kTokenVariable);
  return found == variables.end() ? "" : found->second;
}

std::vector<NamedAdapter> adapters_of(const ServeFlags& flags) {
  std::vector<NamedAdapter> adapters;
  for (const std::string& word : flags.adapters) {
    const std::size_t sign = word.find('=');
    if (sign == std::string::npos || sign == 0 || sign + 1 == word.size())
      throw ConfigError(rule_got_fix("serve: --adapters takes NAME=FOLDER, for each adapter.", word,
                                     "--adapters my-adapter=runs/lora"));
    const std::string name = word.substr(0, sign);
    if (std::ranges::find(adapters, name, &NamedAdapter::name) != adapters.end() || name == flags.model_name)
      throw ConfigError(rule_got_fix("serve: the model and each adapter must have a name of its own.",
                                     concat("'", name, "' twice"), concat("--adapters ", name, "-2=FOLDER")));
    adapters.push_back({name, word.substr(sign + 1)});
  }
  return adapters;
}

ServeFlags serve_flags(const Args& args) {
  ServeFlags flags;
  recipe::take_model(flags, config::parse_command_line(flags, args, kUsage), "serve");
  const auto need = [](bool holds, const char* rule, const std::string& got, const char* fix) {
    if (!holds) throw ConfigError(rule_got_fix(concat("serve: ", rule), got, fix));
  };
  const auto count = [&](const char* rule, std::int64_t value, std::int64_t least, std::int64_t most, const char* fix) {
    need(value >= least && value <= most, rule, concat(value), fix);
  };
  count("--port must be 0 to 65535.", flags.port, 0, 65535, "--port 8000");
  count("--max-texts must be 1 to 1024.", flags.max_texts, 1, 1024, "--max-texts 16");
  count("--cache-tokens must be 0 to 1099511627776.", flags.cache_tokens, 0, std::int64_t{1} << 40, "--cache-tokens 0");
  need(flags.cache_tokens == 0 || flags.cache_memory.empty(), "--cache-memory and --cache-tokens say the same.",
       concat(flags.cache_memory, " and ", flags.cache_tokens), concat("--cache-memory ", flags.cache_memory).c_str());
  count("--max-context must be 0 to 1099511627776.", flags.max_context, 0, std::int64_t{1} << 40, "--max-context 0");
  count("--max-tokens must be 0 to 1099511627776.", flags.max_tokens, 0, std::int64_t{1} << 40, "--max-tokens 0");
  count("--prefill-tokens must be 16 to 65536.", flags.prefill_tokens, 16, 65536, "--prefill-tokens 256");
  count("--max-queue must be 2 to 1000000.", flags.max_queue, 2, 1000000, "--max-queue 256");
  count("--max-connections must be 1 to 100000.", flags.max_connections, 1, 100000, "--max-connections 512");
  count("--max-body-bytes must be 1024 to 1073741824.", flags.max_body_bytes, 1024, 1 << 30,
        "--max-body-bytes 1048576");
  need(flags.request_timeout_s > 0 && flags.request_timeout_s <= 1e6, "--request-timeout-s must be above 0.",
       concat(flags.request_timeout_s), "--request-timeout-s 600");
  need(flags.drain_s >= 0 && flags.drain_s <= 1e6, "--drain-s must be 0 or above.", concat(flags.drain_s),
       "--drain-s 30");
  adapters_of(flags);
  if (!flags.cache_memory.empty()) bytes_of("--cache-memory", flags.cache_memory);
  const bool alone = flags.host == "localhost" || flags.host == "::1" || flags.host.starts_with("127.");
  need(!flags.token_file.empty() || alone || flags.without_token || !token_of_environment().empty(),
       "other machines need a token.", concat("--host ", flags.host, " without one"),
       "--token-file FILE, or --host 127.0.0.1, or --without-token");
  recipe::check_model_flags(flags, "serve");
  return flags;
}

}  // namespace megatron::app
