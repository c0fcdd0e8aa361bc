#include "megatron/generate/generate.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/jobs.h"
#include "app/ranks.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/config/options.h"
#include "megatron/generate/load.h"
#include "megatron/generate/stream.h"
#include "megatron/kernels/runtime.h"
#include "megatron/model/decode.h"
#include "megatron/model/options.h"
#include "megatron/plan/rules.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "megatron generate --load DIR --prompt S… [OPTION]…\n\n"
    "Writes on from each prompt with the model that was trained in DIR (a run's folder, its checkpoints' or one\n"
    "checkpoint). An empty prompt begins a new text. One prompt is answered on the terminal token by token.";

struct GenerateFlags {
  std::string load;
  std::vector<std::string> prompt;
  std::string prompt_file;
  std::string tokenizer;
  std::int64_t max_new_tokens = 64;
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 1234;
  int tp = 1;
  std::string device = "cpu";
  bool ignore_eos = false;
  bool json = false;

  void visit(auto& v) {
    v("load", load, "Folder of the trained run or checkpoint.");
    v("prompt", prompt, "Texts to go on from, each its own.");
    v("prompt_file", prompt_file, "File with one prompt a line.");
    v("tokenizer", tokenizer, "Tokenizer folder or file; empty: the run's.");
    v("max_new_tokens", max_new_tokens, "Tokens to write at most; a full context ends a text sooner.");
    v("temperature", temperature, "Divides the logits; 0: always the likeliest token.");
    v("top_k", top_k, "Draw from the k likeliest tokens; 0: from all.");
    v("top_p", top_p, "Draw from the likeliest tokens that together reach this probability.");
    v("seed", seed, "Seed of the draws.");
    v("tp", tp, "Ranks that split each weight matrix.");
    v("device", device, "cpu or cuda.");
    v("ignore_eos", ignore_eos, "Go on past the end-of-text token.");
    v("json", json,
      "Print one JSON object: prompt_ids, new_ids, text; with several prompts a list of them as `texts`.");
  }
};

std::vector<std::string> prompts_of(const GenerateFlags& flags) {
  std::vector<std::string> prompts = flags.prompt;
  if (!flags.prompt_file.empty()) {
    std::ifstream file(flags.prompt_file, std::ios::binary);
    if (!file) throw ConfigError(rule_got_fix("generate: --prompt-file must be readable.", flags.prompt_file));
    for (std::string line; std::getline(file, line);) prompts.push_back(line);
  }
  if (prompts.empty())
    throw ConfigError(rule_got_fix("generate: a prompt must be given.", "none", "--prompt \"Once upon\""));
  return prompts;
}

/// The tokenizer named, or the run's: its copy in the run's folder, else where its recipe says.
text::Tokenizer tokenizer_of(const GenerateFlags& flags, const config::RunConfig& recipe) {
  if (!flags.tokenizer.empty()) return text::Tokenizer::load(flags.tokenizer);
  const fs::path checkpoints = fs::absolute(checkpoint::find_checkpoint(flags.load)).parent_path();
  for (const fs::path& folder : {checkpoints, checkpoints.parent_path(), fs::path(recipe.train.out)})
    if (fs::exists(folder / "tokenizer.json")) return text::Tokenizer::load(folder);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(
        rule_got_fix("generate: the run must name its tokenizer.", "none in its recipe", "--tokenizer DIR"));
  return text::Tokenizer::load(recipe.data.tokenizer);
}

/// The trained model's sizes on the ranks asked for here; the rest of the recipe belongs to training.
plan::ResolvedRun resolve(const GenerateFlags& flags, const config::RunConfig& recipe,
                          const text::Tokenizer& tokenizer) {
  config::RunConfig config;
  config.model = recipe.model;
  config.train.dtype = recipe.train.dtype;
  config.data.seq_length = recipe.data.seq_length;
  config.parallel.tp = config.parallel.world_size = flags.tp;
  config.parallel.device = flags.device;
  return plan::resolve(config, {.tokenizer_vocab = tokenizer.vocab_size()});
}

struct Request {
  GenerateFlags flags;
  text::Tokenizer tokenizer;
  plan::ResolvedRun run;
  std::vector<std::vector<std::int64_t>> prompts;
  generate::GenerateOptions options;
};

Request prepare(const Args& args) {
  GenerateFlags flags;
  const auto rest = config::parse_command_line(flags, args, kUsage);
  if (!rest.empty()) throw ConfigError(rule_got_fix("generate takes options alone.", rest[0], kUsage));
  if (flags.load.empty())
    throw ConfigError(rule_got_fix("generate: --load must name a trained run.", "none", "--load runs/default"));
  const auto texts = prompts_of(flags);
  const auto recipe = checkpoint::saved_recipe(flags.load);
  auto tokenizer = tokenizer_of(flags, recipe);
  auto run = resolve(flags, recipe, tokenizer);
  const auto eod = tokenizer.token_to_id("<|endoftext|>");
  generate::GenerateOptions options{
      .max_new_tokens = flags.max_new_tokens,
      .sampling = {.temperature = flags.temperature, .top_k = flags.top_k, .top_p = flags.top_p},
      .seed = flags.seed,
      .eod = flags.ignore_eos || !eod ? -1 : *eod};
  std::vector<std::vector<std::int64_t>> prompts;
  for (const std::string& text : texts) {
    const auto ids = tokenizer.encode(text);
    prompts.emplace_back(ids.begin(), ids.end());
    if (ids.empty() && eod) prompts.back() = {*eod};  // after the end of one text the next begins
  }
  generate::check(prompts, run.shape.max_positions, options);
  return {std::move(flags), std::move(tokenizer), std::move(run), std::move(prompts), options};
}

/// The text of `ids`. A model may know more ids than the tokenizer: those, and the ending one, have no text.
std::string text_of(const Request& request, const std::vector<std::int64_t>& ids) {
  std::string text;
  for (const std::int64_t id : ids)
    if (id < request.tokenizer.vocab_size() && id != request.options.eod)
      text += request.tokenizer.id_to_bytes(static_cast<std::int32_t>(id));
  return text;
}

void report(const Request& request, const std::vector<std::vector<std::int64_t>>& texts) {
  using nlohmann::json;
  json objects = json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text = text_of(request, texts[i]);
    if (request.flags.json)
      objects.push_back({{"prompt_ids", request.prompts[i]}, {"new_ids", texts[i]}, {"text", text}});
    else
      std::printf("%s%s%s\n", i > 0 ? "\n" : "", text_of(request, request.prompts[i]).c_str(), text.c_str());
  }
  if (!request.flags.json) return;
  const json whole = texts.size() == 1 ? objects[0] : json({{"texts", objects}});
  std::printf("%s\n", whole.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
}

void run_rank(const Request& request, const comm::Group& tp, at::Device device) {
  const config::RunConfig& config = request.run.config;
  const auto specs = plan::gpt_parameters(request.run.shape, tp.size(), tp.rank());
  const parallel::ParameterStore parameters(specs, plan::buffer_layout(specs, 0),
                                            config.train.dtype == "fp64" ? at::kDouble : at::kFloat, device, 0,
                                            parallel::ParameterStore::Gradients::None);
  generate::load_weights(request.flags.load, parameters, request.run.shape);
  model::GptOptions options = model::gpt_options(config, request.run.shape);
  options.sequence_parallel = false;
  const model::CachedGpt model(options, parameters, tp);

  const bool stream = request.prompts.size() == 1 && !request.flags.json && tp.rank() == 0;
  generate::Utf8Stream out([](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  if (stream) out.write(text_of(request, request.prompts[0]));
  const auto texts = generate::generate(model, request.prompts, request.options, [&](std::size_t, std::int64_t token) {
    if (stream) out.write(text_of(request, {token}));
  });
  if (stream) {
    out.finish();
    std::printf("\n");
  } else if (tp.rank() == 0) {
    report(request, texts);
  }
}

}  // namespace

int generate(const Args& args) {
  const Request request = prepare(args);
  kernels::install_caching_allocator();
  return run_on_ranks(request.run, comm::place_from(environment()), [&](const comm::Group& tp, at::Device device) {
    run_rank(request, tp, device);
    return kDone;
  });
}

}  // namespace megatron::app
