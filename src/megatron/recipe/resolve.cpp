#include "megatron/recipe/resolve.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/families/folder.h"
#include "megatron/families/format_words.h"
#include "megatron/families/hf_config.h"
#include "megatron/schedule/table.h"
#include "megatron/text/vocabulary.h"

namespace megatron::recipe {

std::optional<std::string> read_schedule_file(const std::string& pp_schedule) {
  constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 28;
  std::error_code error;  // what cannot be looked at is no file
  if (pp_schedule.empty() || schedule::is_name(pp_schedule) ||
      (pp_schedule.find_first_of("./") == std::string::npos && !std::filesystem::is_regular_file(pp_schedule, error)))
    return std::nullopt;
  return read_file(pp_schedule, kMaxFile);
}

std::optional<plan::TeacherNetwork> read_teacher(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  std::error_code unknown;
  if (!std::filesystem::exists(folder, unknown) && !unknown) throw ConfigError(families::no_weights(folder));
  const auto network = families::network_of_folder(folder);
  if (!network) return std::nullopt;
  return plan::TeacherNetwork{*network, families::shape_of(*network)};
}

config::RunConfig with_null_tokenizer(config::RunConfig config) {
  config::DataConfig& data = config.data;
  const bool null = data.tokenizer_type == "NullTokenizer" || (data.mock_data && data.tokenizer_type.empty());
  if (!null || !data.tokenizer.empty() || config.model.vocab_size < 2) return config;
  data.tokenizer_type = "NullTokenizer";
  data.tokenizer = std::to_string(config.model.vocab_size - 1);
  return config;
}

std::int64_t needed_rows(const text::Tokenizer& tokenizer, std::int64_t rows) {
  const std::int64_t tokens = tokenizer.vocab_size();
  std::vector<bool> may_lack_one(static_cast<std::size_t>(tokens));
  for (const text::SpecialToken& token : tokenizer.vocabulary().specials)
    may_lack_one[static_cast<std::size_t>(token.id)] = token.id != tokenizer.find_eod_id();
  for (std::int64_t id = std::max<std::int64_t>(rows, 0); id < tokens; ++id)
    if (!may_lack_one[static_cast<std::size_t>(id)]) return tokens;
  return std::min(rows, tokens);
}

std::int64_t needed_rows(const text::Tokenizer& tokenizer, const config::ModelConfig& model) {
  const bool draws = config::model_traits(model.architecture).reads_sentences && model.head == "tokens";
  return model.vocab_size < 1 || draws ? tokenizer.vocab_size() : needed_rows(tokenizer, model.vocab_size);
}

RunAndTokenizer resolve_with_tokenizer(const config::RunConfig& given, plan::Facts facts) {
  const config::RunConfig config = with_null_tokenizer(given);
  std::optional<text::Tokenizer> tokenizer;
  std::optional<plan::ResolvedRun> run;
  attempt_all({[&] {
                 if (config.data.tokenizer.empty()) return;
                 facts.tokenizer_vocab = std::max<std::int64_t>(1, config.model.vocab_size);  // if it cannot be read
                 tokenizer = text::Tokenizer::load(config.data.tokenizer, config.data.tokenizer_type,
                                                   config.data.vocab_extra_ids);
                 facts.tokenizer_vocab = needed_rows(*tokenizer, config.model);
               },
               [&] {
                 if (!facts.teacher) facts.teacher = read_teacher(config.distill.teacher);
               },
               [&] {
                 const bool unreadable = !config.data.tokenizer.empty() && !tokenizer;
                 if (unreadable) facts.teacher.reset();  // with whose tokens a teacher's are compared
                 facts.schedule_file = read_schedule_file(config.parallel.pp_schedule);
                 run = plan::resolve(config, facts);
               }});
  return {std::move(*run), std::move(tokenizer)};
}

}  // namespace megatron::recipe
