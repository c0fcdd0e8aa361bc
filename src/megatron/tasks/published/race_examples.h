#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tasks {

/// The schools from whose exams RACE's questions are: the folder of its name.
enum class RaceLevel : std::uint8_t { Unknown, Middle, High };

/// A question of RACE (Lai et al. 2017) on an article, with four options.
struct RaceQuestion {
  static constexpr std::size_t kOptions = 4;
  std::string id;            ///< "high1.txt-0": the article's id, else its file and line, and the question's number.
  std::int32_t article = 0;  ///< In RaceExamples::articles.
  /// The question with each option: in the place of each "_", or else behind a space.
  std::array<std::string, kOptions> texts;
  std::int32_t label = -1;  ///< The right option; -1 where the file does not say.
  RaceLevel level = RaceLevel::Unknown;
};

struct RaceExamples {
  std::vector<std::string> articles;
  std::vector<RaceQuestion> questions;
};

/// Reads RACE as it is published: a folder, searched with the folders in it, of .txt files in the order of their names,
/// or one file. Each line is a JSON object with article, questions, options, and answers (letters A to D) where these
/// are known. Throws ConfigError naming file and line for what is not so, and for a question that would exceed 1 MiB.
RaceExamples read_race(const std::filesystem::path& path);

/// Adds what the lines of a file in memory hold, which messages call `name`.
void parse_race(std::string_view text, const std::string& name, RaceExamples& examples);

}  // namespace megatron::tasks
