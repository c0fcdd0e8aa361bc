#include "megatron/generate/generate.h"
#include "app/json_line.h"
#include "app/print.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "app/generate/answer.h"
#include "app/generate/chat_template.h"
#include "app/generate/generate_options.h"
#include "app/jobs.h"
#include "app/tokenizer/text_stream.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/generate/serving/engine.h"
#include "megatron/generate/speculate.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/run/trained_model.h"
#include "megatron/text/chat_template.h"
#include "megatron/text/texts.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/agreement.h"

namespace megatron::app {
namespace {

std::vector<std::string> prompts_of(const GenerateFlags& flags) {
  std::vector<std::string> prompts = flags.prompt;
  if (!flags.prompt_file.empty()) {
    std::string text = read_file(flags.prompt_file);
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    std::istringstream file(std::move(text));
    for (std::string line; std::getline(file, line); prompts.push_back(line))
      if (line.ends_with('\r')) line.pop_back();
  }
  need_prompts(prompts);
  return prompts;
}

/// The error with another fix, as its own is for those who train.
ConfigError with_fix(const ConfigError& error, const std::string& fix) {
  const std::string text = error.what();
  return ConfigError(concat(text.substr(0, text.find("\n  fix:")), "\n  fix:  ", fix));
}

text::ChatTemplate chat_template_or(const GenerateFlags& flags, const std::string& fix) {
  try {
    return chat_template_of(flags);
  } catch (const ConfigError& error) {
    throw with_fix(error, fix);
  }
}

/// What the user says as the model's chat template writes it, up to where the answer begins.
std::vector<std::string> chats_of(const GenerateFlags& flags, std::vector<std::string> texts) {
  const std::string without = concat(flags.system.empty() ? "leave --chat out" : "leave --chat and --system out",
                                     ", or name a chat model's folder: --load, --tokenizer");
  const text::ChatTemplate chat = chat_template_or(flags, without);
  for (std::string& text : texts) {
    std::vector<text::ChatMessage> messages;
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
    messages.push_back({"user", text});
    try {
      text = chat.prompt(messages);
    } catch (const text::ConversationRefused& refused) {
      throw with_fix(refused, flags.system.empty() ? "leave --chat out" : "leave --system out");
    } catch (const ConfigError& error) {
      throw with_fix(error, without);
    }
  }
  return texts;
}

struct Request {
  GenerateFlags flags;
  run::TrainedModel model;
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<std::size_t> openings;  ///< of each prompt's tokens, that were set before its text
  generate::GenerateOptions options;

  /// The tokens of prompt `i` as the user wrote it.
  std::vector<std::int64_t> written(std::size_t i) const {
    return {prompts[i].begin() + static_cast<std::ptrdiff_t>(openings[i]), prompts[i].end()};
  }
  bool speculates() const { return flags.speculative_method == kMultiToken; }
  std::int64_t draft_tokens() const {
    return flags.num_speculative_tokens > 0 ? flags.num_speculative_tokens : model.run.shape.mtp_depths;
  }
};

/// Throws ConfigError where the model cannot draft what the flags ask for.
void check_speculation(const GenerateFlags& flags, const plan::ModelShape& shape) {
  const std::int64_t tokens = flags.num_speculative_tokens;
  if (flags.speculative_method != kMultiToken) return;
  if (shape.mtp_depths == 0)
    throw ConfigError(
        rule_got_fix("generate: --speculative-method mtp needs a model with depths of multi-token "
                     "prediction, as --mtp-num-layers trains them.",
                     "a model without", "--speculative-method none (the default)"));
  if (tokens < 0 || tokens > shape.mtp_depths)
    throw ConfigError(rule_got_fix(
        concat("generate: --num-speculative-tokens must be 0 to ", shape.mtp_depths, ", the depths of the model."),
        concat(tokens), "--num-speculative-tokens 0 (the default)"));
}

/// What the ranks must have in common besides the recipe.
comm::Facts facts_of(const run::TrainedModel& model, GenerateFlags flags) {
  comm::Facts facts = run::model_facts(model, config::fields_of(flags));
  if (!flags.prompt_file.empty()) facts.push_back(train::file_fact(flags.prompt_file));
  return facts;
}

/// What an encoder-decoder (T5) does with the flags.
int answer_of_pair(const GenerateFlags& flags) {
  run::TrainedModel model = run::open_trained_model(flags, "generate", recipe::Writes::TextsOrAnswers);
  run::keep_adapter(model, flags.adapter, "generate");
  return answer(model, prompts_of(flags),
                {.max_new_tokens = flags.max_new_tokens,
                 .num_beams = flags.num_beams,
                 .sampling = sampling_of(flags, 0),
                 .seed = flags.seed,
                 .length_penalty = flags.length_penalty,
                 .early_stopping = flags.early_stopping,
                 .ignore_eos = flags.ignore_eos,
                 .json = flags.json},
                facts_of(model, flags));
}

Request prepare(GenerateFlags flags) {
  const auto texts = flags.chat ? chats_of(flags, prompts_of(flags)) : prompts_of(flags);
  run::TrainedModel model = run::open_trained_model(flags, "generate");
  run::keep_adapter(model, flags.adapter, "generate");
  check_speculation(flags, model.run.shape);
  generate::GenerateOptions options{.max_new_tokens = flags.max_new_tokens,
                                    .sampling = sampling_of(flags, 1),
                                    .seed = flags.seed,
                                    .ends = flags.ignore_eos ? std::vector<std::int64_t>() : model.ends};
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<std::size_t> openings;
  for (const std::string& text : texts) {
    const auto ids = model.tokenizer.encode(text, text::Specials::Recognised);
    std::vector<std::int32_t> opening;
    if (flags.add_special_tokens && !flags.chat) opening = text::opening_of(model.tokenizer, ids);
    prompts.emplace_back(opening.begin(), opening.end());
    prompts.back().insert(prompts.back().end(), ids.begin(), ids.end());
    openings.push_back(opening.size());
    if (prompts.back().empty() && !model.ends.empty())
      prompts.back() = {model.ends[0]};  // after the end of a text the next begins
  }
  for (const auto& ids : prompts) run::check_tokens(model, ids, "generate");
  generate::check(prompts, model.run.shape.max_positions, options);
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(train::scalar_type(model.run.config)));
  const auto largest_bytes =
      flags.speculative_method == kMultiToken ? generate::largest_text_bytes : generate::largest_group_bytes;
  run::check_memory(
      model, {.bytes = largest_bytes(prompts, options, model.run.shape, element_bytes, model.run.config.parallel.tp),
              .what = "keys and values of what is written",
              .fix = "fewer --max-new-tokens, or a shorter prompt"});
  return {std::move(flags), std::move(model), std::move(prompts), std::move(openings), options};
}

std::vector<std::int32_t> ids_with_text(const Request& request, const std::vector<std::int64_t>& ids) {
  return text::ids_with_text(request.model.tokenizer, ids, request.model.ends);
}

/// What the model found of the new tokens of each prompt, where that was asked for.
using Scores = std::vector<std::vector<serve::ScoredToken>>;

void add_scores(nlohmann::json& object, const std::vector<serve::ScoredToken>& scores) {
  nlohmann::json all = nlohmann::json::array(), tops = nlohmann::json::array();
  for (const serve::ScoredToken& score : scores) {
    nlohmann::json top = nlohmann::json::array();
    for (const auto& [id, logprob] : score.likeliest) top.push_back({{"id", id}, {"logprob", logprob}});
    all.push_back(*score.logprob);
    tops.push_back(top);
  }
  object["logprobs"] = all;
  object["top_logprobs"] = tops;
}

/// What came of drafts, of all texts together.
nlohmann::json speculation_of(const generate::Speculation& counts) {
  return {{"passes", counts.passes},
          {"draft_tokens", counts.draft_tokens},
          {"accepted_tokens", counts.accepted_tokens},
          {"acceptance_rate", counts.accepted_rate()}};
}

void report(const Request& request, const std::vector<std::vector<std::int64_t>>& texts, const Scores& scores,
            const generate::Speculation& counts) {
  using nlohmann::json;
  json objects = json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto ids = ids_with_text(request, request.written(i));
    const auto added = ids_with_text(request, texts[i]);
    if (request.flags.json) {
      objects.push_back({{"prompt_ids", request.prompts[i]},
                         {"new_ids", texts[i]},
                         {"text", text::text_after(request.model.tokenizer, ids, added)}});
      if (request.flags.logprobs >= 0) add_scores(objects.back(), scores[i]);
      continue;
    }
    ids.insert(ids.end(), added.begin(), added.end());
    print("{}{}\n", i > 0 ? "\n" : "", request.model.tokenizer.decode(ids));
  }
  if (!request.flags.json) return;
  json whole = texts.size() == 1 ? objects[0] : json({{"texts", objects}});
  if (request.speculates()) whole["speculation"] = speculation_of(counts);
  print_json(whole);
}

void run_rank(const Request& request, const comm::Group& world, at::Device device) {
  std::size_t prompt = 0;
  for (const auto& ids : request.prompts) prompt = std::max(prompt, ids.size());
  const std::int64_t context = request.model.run.shape.max_positions;
  const std::int64_t longest =
      static_cast<std::int64_t>(prompt) + std::min(request.options.max_new_tokens, context);  // no overflow
  const run::RankModel rank = run::load_rank(request.model, world, device, longest);
  const generate::StagedModel model(model::CachedGpt(rank.options, rank.part, rank.parameters, rank.context.tensor()),
                                    rank.context.pipeline(), rank.tensor());

  std::optional<TextStream> stream;
  if (request.prompts.size() == 1 && !request.flags.json && world.rank() == 0)
    stream.emplace(request.model.tokenizer, request.model.ends);
  if (stream) stream->push(request.written(0));
  Scores scores(request.prompts.size());
  generate::GenerateOptions options = request.options;
  if (request.flags.logprobs >= 0 && world.rank() == 0)
    options.on_logits = [&](std::size_t i, std::span<const double> logits, std::int64_t token) {
      scores[i].push_back(generate::scored(logits, token, request.flags.logprobs));
    };
  const generate::OnToken on_token = [&](std::size_t, std::int64_t token) {
    if (stream) stream->push({token});
  };
  std::optional<model::Drafter> drafter;
  if (request.speculates() && rank.part.output)
    drafter.emplace(rank.options, rank.part, rank.parameters, rank.context.tensor());
  generate::Speculation counts;
  const auto texts = request.speculates()
                         ? generate::speculate(model, drafter ? &*drafter : nullptr, request.draft_tokens(),
                                               request.prompts, options, counts, on_token)
                         : generate::generate(model, request.prompts, options, on_token);
  if (stream)
    stream->finish();
  else if (world.rank() == 0)
    report(request, texts, scores, counts);
  if (request.speculates() && !request.flags.json && world.rank() == 0)
    write_line(stderr,
               formatted("speculation: {} of {} drafted tokens accepted ({:.0f} %) in {} passes",
                         counts.accepted_tokens, counts.draft_tokens, 100 * counts.accepted_rate(), counts.passes));
}

int run_generate(const Args& args) {
  GenerateFlags flags = generate_flags(args);
  const bool pair = config::model_traits(interchange::model_config_of(flags.load).architecture).encoder_decoder;
  check_kind(flags, pair);
  if (pair) return answer_of_pair(flags);
  const Request request = prepare(std::move(flags));
  kernels::install_caching_allocator();
  return run::run_on_ranks(
      request.model.run, comm::place_from(comm::process_environment()),
      [&](const comm::Group& world, at::Device device) {
        run_rank(request, world, device);
        return kDone;
      },
      facts_of(request.model, request.flags));
}

}  // namespace

int generate(const Args& args) {
  return run::run_job_of_ranks([&] { return run_generate(args); });
}

}  // namespace megatron::app
