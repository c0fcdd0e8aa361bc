#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tasks {

/// Tasks of the GLUE benchmark (Wang et al. 2019) that classify a pair of texts: MNLI, whether a premise entails a
/// hypothesis; QQP, whether two questions ask the same.
enum class GlueTask : std::uint8_t { Mnli, Qqp };

/// Names of a task's classes in the order of the class numbers: contradiction, entailment, neutral; "0", "1".
const std::vector<std::string>& glue_labels(GlueTask task);

struct PairExample {
  std::string id;  ///< What the file calls it, for the table of predictions.
  std::string first, second;
  std::int32_t label = -1;  ///< Class; -1 where the file has none (a test set).
};

struct PairExamples {
  std::vector<PairExample> examples;
  std::int64_t passed_over = 0;  ///< Lines of QQP that are broken off or have an empty question, and MNLI's without
                                 ///< an agreed label ("-").
};

/// Reads the table of a task as GLUE publishes it: a line of column names, then one line an example, columns parted by
/// tabs, no quoting. MNLI: sentence1, sentence2 and, where there are labels, gold_label. QQP: question1, question2,
/// is_duplicate. The first column is the id. A training set of QQP has lines that are broken in two; they are passed
/// over, as the original does. Throws ConfigError naming file and line: a missing column, a wrong number of columns, an
/// unknown label, text that is no UTF-8, a table of which more than one line in 100 is broken.
PairExamples read_glue(const std::filesystem::path& path, GlueTask task);

/// read_glue() of a file in memory, which messages call `name`.
PairExamples parse_glue(std::string_view text, const std::string& name, GlueTask task);

}  // namespace megatron::tasks
