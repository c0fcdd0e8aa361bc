#include "app/generate/answer.h"

#include "app/print.h"
#include "megatron/generate/answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/tokenizer/text_stream.h"
#include "megatron/base/error.h"
#include "megatron/interchange/import.h"
#include "megatron/kernels/runtime.h"
#include "megatron/run/ranks.h"
#include "megatron/text/texts.h"

namespace megatron::app {
namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

generate::EarlyStopping early_stopping_of(const std::string& name) {
  using generate::EarlyStopping;
  for (const auto& [known, value] :
       {std::pair{"likely", EarlyStopping::Likely}, {"full", EarlyStopping::WhenFull}, {"never", EarlyStopping::Never}})
    if (name == known) return value;
  throw ConfigError(rule_got_fix("generate: --early-stopping must be likely, full or never.", name,
                                 "--early-stopping likely (the default)"));
}

/// What the encoder reads: the prompt's tokens, ended as its texts were in training.
Texts texts_of(const run::TrainedModel& model, const std::vector<std::string>& prompts,
               const interchange::AnswerFrame& frame) {
  Texts texts;
  for (const std::string& prompt : prompts) {
    const auto ids = model.tokenizer.encode(prompt, text::Specials::Recognised);
    auto& text = texts.emplace_back(ids.begin(), ids.end());
    if (frame.text_end && (text.empty() || text.back() != *frame.text_end)) text.push_back(*frame.text_end);
  }
  return texts;
}

void report(const run::TrainedModel& model, const Texts& texts, const std::vector<std::vector<generate::Beam>>& answers,
            const std::vector<std::int64_t>& ends, bool as_json) {
  using nlohmann::json;
  json objects = json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const generate::Beam& best = answers[i].front();
    const std::string text = model.tokenizer.decode(text::ids_with_text(model.tokenizer, best.tokens, ends));
    if (as_json)
      objects.push_back({{"prompt_ids", texts[i]}, {"new_ids", best.tokens}, {"text", text}, {"score", best.score}});
    else
      print("{}\n", text);
  }
  if (as_json) print_json(texts.size() == 1 ? objects[0] : json({{"texts", objects}}));
}

}  // namespace

int answer(const run::TrainedModel& model, const std::vector<std::string>& prompts, const AnswerFlags& flags,
           const comm::Facts& facts) {
  const auto frame = interchange::answer_frame(model.folder, model.tokenizer);
  const generate::AnswerOptions options{.beams = {.num_beams = flags.num_beams,
                                                  .max_new_tokens = flags.max_new_tokens,
                                                  .length_penalty = flags.length_penalty,
                                                  .early_stopping = early_stopping_of(flags.early_stopping),
                                                  .ends = flags.ignore_eos ? std::vector<std::int64_t>() : frame.ends},
                                        .sampling = flags.sampling,
                                        .seed = flags.seed,
                                        .start = frame.start};
  const Texts texts = texts_of(model, prompts, frame);
  generate::check(texts, model.run.shape.vocab, options);
  kernels::install_caching_allocator();
  const auto body = [&](const comm::Group& world, at::Device device) {
    const run::RankModel rank = run::load_rank(model, world, device, model.run.shape.max_positions);
    const generate::StagedT5 t5(model::CachedT5(rank.options, rank.part, rank.parameters, rank.context.tensor()),
                                model.run.parts, rank.context.pipeline(), rank.tensor());
    std::optional<TextStream> stream;
    if (world.rank() == 0 && texts.size() == 1 && flags.num_beams == 1 && !flags.json)
      stream.emplace(model.tokenizer, frame.ends);
    const auto found = generate::answers(t5, texts, options, [&](std::size_t, std::int64_t token) {
      if (stream) stream->push({token});
    });
    if (stream)
      stream->finish();
    else if (world.rank() == 0)
      report(model, texts, found, frame.ends, flags.json);
    return kDone;
  };
  return run::run_on_ranks(model.run, comm::place_from(comm::process_environment()), body, facts);
}

}  // namespace megatron::app
