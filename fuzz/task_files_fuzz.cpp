// A file of MNLI, QQP, RACE or SQuAD, or SQuAD's predictions; the first byte says which. It is read or refused by a
// ConfigError; what was read makes rows of the lengths that they say, whose targets lie in the context.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/tasks/pair_rows.h"
#include "megatron/tasks/published/glue_examples.h"
#include "megatron/tasks/published/race_examples.h"
#include "megatron/tasks/scores/prediction_files.h"
#include "megatron/tasks/squad_features.h"
#include "megatron/text/files/tokenizer_files.h"

namespace {

using namespace megatron;
using namespace megatron::tasks;

void check(bool right) {
  if (!right) std::abort();
}

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer letters(
      text::parse_vocab_txt("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n##a\n##b\n##c\n", "letters", {}));
  return letters;
}

void fill_all(const PairRows& rows) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows.seq_length())), types(ids.size());
  for (std::size_t row = 0; row < rows.size(); ++row) check(rows.fill(row, ids, types) == rows.length(row));
}

void try_squad(std::string_view bytes, SquadVersion version) {
  const SquadExamples examples = parse_squad(bytes, "input", version);
  const SquadFeatures features(examples, tokenizer(), {.seq_length = 12, .doc_stride = 3, .max_query_length = 4}, 1);
  std::vector<std::int32_t> ids(12), types(12);
  for (std::size_t w = 0; w < features.windows().size(); ++w) {
    features.fill(w, ids, types);
    const SquadWindow& window = features.windows()[w];
    for (const SquadAnswer& answer : examples.questions[static_cast<std::size_t>(window.question)].answers) {
      const SpanTarget target = features.target(w, answer);
      if (target == SpanTarget()) continue;
      const std::int32_t first = features.context_position(w);
      check(first <= target.start && target.start <= target.end && target.end < first + window.count);
      check(!features.answer_text(w, target.start, target.end).empty());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 6) {
      case 0:
        fill_all(pair_rows(parse_glue(bytes, "input", GlueTask::Mnli), tokenizer(), bert_frame(tokenizer()), 8, 1));
        break;
      case 1:
        fill_all(pair_rows(parse_glue(bytes, "input", GlueTask::Qqp), tokenizer(), bert_frame(tokenizer()), 8, 1));
        break;
      case 2: {
        RaceExamples examples;
        parse_race(bytes, "input", examples);
        fill_all(choice_rows(examples, tokenizer(), bert_frame(tokenizer()), 8, 3, 1));
        break;
      }
      case 3:
        try_squad(bytes, SquadVersion::V1);
        break;
      case 4:
        try_squad(bytes, SquadVersion::V2);
        break;
      default: {
        SquadExamples examples;
        for (const char* id : {"a", "b"}) examples.questions.push_back({.id = id, .text = "?", .answers = {}});
        const SquadAnswers answers = parse_squad_predictions(bytes, "input", examples);
        check(answers.texts.size() == 2 && answers.found.size() == 2);
        check(parse_squad_null_odds(bytes, "input", examples).size() == 2);
      }
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
