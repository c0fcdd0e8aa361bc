#include "megatron/tasks/published/glue_examples.h"

#include <algorithm>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"

namespace megatron::tasks {
namespace {

/// Lines of a table, one after another, taken apart at the tabs.
class TableLines {
 public:
  explicit TableLines(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }

  bool next() {
    if (rest_.empty()) return false;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    ++number_;
    columns_.clear();
    for (std::size_t begin = 0;;) {
      const std::size_t tab = std::min(line_.find('\t', begin), line_.size());
      columns_.push_back(line_.substr(begin, tab - begin));
      if (tab == line_.size()) return true;
      begin = tab + 1;
    }
  }

  std::string_view line() const { return line_; }
  const std::vector<std::string_view>& columns() const { return columns_; }
  std::int64_t number() const { return number_; }

 private:
  std::string_view rest_, line_;
  std::vector<std::string_view> columns_;
  std::int64_t number_ = 0;
};

class GlueReader {
 public:
  GlueReader(std::string_view text, const std::string& name, GlueTask task) : lines_(text), name_(name), task_(task) {
    if (!lines_.next()) fail("the table must have a line of column names.", "an empty file");
    names_ = lines_.columns().size();
    const bool mnli = task == GlueTask::Mnli;
    first_ = *column(mnli ? "sentence1" : "question1", true);
    second_ = *column(mnli ? "sentence2" : "question2", true);
    label_ = column(mnli ? "gold_label" : "is_duplicate", false);
  }

  PairExamples read() {
    PairExamples result;
    while (lines_.next())
      if (!lines_.line().empty() && !add_line(result.examples)) ++result.passed_over;
    if (broken_ > (lines_.number() - 1) / 100 + 1)
      fail("at most one line in 100 may be broken.", concat(broken_, " lines with fewer than ", names_, " columns"));
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(name_, ", line ", std::max<std::int64_t>(lines_.number(), 1), ": ", rule),
                                   got, "the file as it is published, whole"));
  }

  std::optional<std::size_t> column(std::string_view wanted, bool must) const {
    const auto& names = lines_.columns();
    const auto found = std::find(names.begin(), names.end(), wanted);
    if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
    if (must)
      fail(concat("a table of ", task_ == GlueTask::Mnli ? "MNLI" : "QQP", " must have the column ", wanted, "."),
           concat(names.size(), " other columns"));
    return {};
  }

  /// False where the line is skipped.
  bool add_line(std::vector<PairExample>& examples) {
    const auto& columns = lines_.columns();
    if (columns.size() != names_) {
      if (task_ == GlueTask::Qqp && columns.size() < names_) return ++broken_, false;
      fail(concat("each line must have ", names_, " columns, as the first has."), concat(columns.size()));
    }
    if (!valid_utf8(lines_.line())) fail("the table must be UTF-8.", "other bytes");
    const std::string_view first = columns[first_], second = columns[second_];
    if (task_ == GlueTask::Qqp && (first.empty() || second.empty())) return false;
    PairExample example{.id = std::string(columns[0]), .first = std::string(first), .second = std::string(second)};
    if (label_) {
      const std::string_view label = columns[*label_];
      if (task_ == GlueTask::Mnli && label == "-") return false;
      const auto& labels = glue_labels(task_);
      const auto found = std::find(labels.begin(), labels.end(), label);
      if (found == labels.end())
        fail(concat("the label must be one of ", labels.front(), " … ", labels.back(), "."), in_quotes(label));
      example.label = static_cast<std::int32_t>(found - labels.begin());
    }
    examples.push_back(std::move(example));
    return true;
  }

  TableLines lines_;
  const std::string& name_;
  GlueTask task_;
  std::size_t names_ = 0, first_ = 0, second_ = 0;
  std::optional<std::size_t> label_;
  std::int64_t broken_ = 0;
};

}  // namespace

const std::vector<std::string>& glue_labels(GlueTask task) {
  static const std::vector<std::string> mnli = {"contradiction", "entailment", "neutral"}, qqp = {"0", "1"};
  return task == GlueTask::Mnli ? mnli : qqp;
}

PairExamples parse_glue(std::string_view text, const std::string& name, GlueTask task) {
  return GlueReader(text, name, task).read();
}

PairExamples read_glue(const std::filesystem::path& path, GlueTask task) {
  const MappedFile file(path);
  return parse_glue(file.text(), path.string(), task);
}

}  // namespace megatron::tasks
