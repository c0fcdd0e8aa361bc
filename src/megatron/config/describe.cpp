#include <algorithm>
#include <functional>

#include "megatron/config/options.h"
#include "megatron/config/value.h"

namespace megatron::config {
namespace {

constexpr std::size_t kTextColumn = 34, kLineWidth = 110;

/// `text` in lines that start at kTextColumn; the cursor is at `column` now.
std::string wrapped(const std::string& text, std::size_t column) {
  std::string out;
  const auto new_line = [&] {
    out += "\n" + std::string(kTextColumn, ' ');
    column = kTextColumn;
  };
  if (column >= kTextColumn)
    new_line();
  else
    out.append(kTextColumn - column, ' '), column = kTextColumn;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (column > kTextColumn && column + 1 + end - begin > kLineWidth) new_line();
    if (column > kTextColumn) out += ' ', ++column;
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out + "\n";
}

std::string default_text(const Field& field) {
  const std::string value = plain_value(field.value);
  return value.empty() ? "none" : value;
}

/// Calls `section` and then `option` for each of its fields; fields without a section come first, without a call of
/// `section`.
void for_each(const Fields& fields, const std::function<void(const Fields::Section&)>& section,
              const std::function<void(const Field&)>& option) {
  const auto options_of = [&](const std::string& name) {
    for (const Field& field : fields.fields)
      if (split_path(field.path).section == name) option(field);
  };
  options_of("");
  for (const Fields::Section& entry : fields.sections) {
    section(entry);
    options_of(entry.name);
  }
}

}  // namespace

std::string help_text(const Fields& fields, const std::string& usage) {
  std::string out = usage.empty() ? "" : usage + "\n";
  bool in_section = false;
  std::string title;
  for_each(
      fields,
      [&](const Fields::Section& section) {
        out += "\n[" + section.name + "] " + section.help + "\n";
        in_section = true;
      },
      [&](const Field& field) {
        if (!in_section && field.title != title) out += "\n" + (title = field.title) + "\n";
        std::string names = "  --" + field.path;
        if (!in_section) std::replace(names.begin(), names.end(), '_', '-');  // in sections as a recipe has it
        for (const std::string& alias : field.aliases)
          if (normalized(alias) != normalized(field.path)) names += ", --" + alias;
        out += names + wrapped(field.help + " (" + type_name(field.value) + "; default " + default_text(field) + ")",
                               names.size());
      });
  return out;
}

namespace {

const char* affects_text(Affects affects) {
  switch (affects) {
    case Affects::Step:
      return "step";
    case Affects::Weights:
      return "weights";
    case Affects::Samples:
      return "samples";
    case Affects::Nothing:
      return "";
  }
  return "";
}

std::string condition_text(const Condition& condition) {
  std::string values;
  for (const std::string& value : condition.values) values += (values.empty() ? "" : ", ") + value;
  const std::string option = "`" + condition.option + "`";
  switch (condition.is) {
    case Condition::Is::On:
      return "with " + option;
    case Condition::Is::Off:
      return "without " + option;
    case Condition::Is::OneOf:
      return option + " " + values;
    case Condition::Is::NoneOf:
      return option + " not " + values;
  }
  return "";
}

/// "`train.dtype` fp16; without `optimizer.loss_scale`"
std::string where_text(const std::vector<When>& where) {
  std::string text;
  for (const When& when : where) {
    std::string any;
    for (const Condition& condition : when.any) any += (any.empty() ? "" : " or ") + condition_text(condition);
    text += (text.empty() ? "" : "; ") + any;
  }
  return text;
}

}  // namespace

std::string to_markdown(const Fields& fields) {
  constexpr const char* kHeader = "| option | default | also | affects | read | meaning |\n|---|---|---|---|---|---|\n";
  const auto cell = [](const std::string& text) {  // a bar would end the cell
    std::string out;
    for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
    return out;
  };
  std::string out = fields.sections.empty() ? kHeader : "";
  for_each(
      fields,
      [&](const Fields::Section& section) {
        out += "\n## [" + section.name + "]\n\n" + section.help + "\n\n" + kHeader;
      },
      [&](const Field& field) {
        std::string also;
        for (const std::string& alias : field.aliases) also += (also.empty() ? "`--" : ", `--") + alias + "`";
        out += "| `--" + field.path + "` | `" + cell(default_text(field)) + "` | " + also + " | " +
               affects_text(field.meaning.affects) + " | " + where_text(field.meaning.where) + " | " +
               cell(field.help) + " |\n";
      });
  return out;
}

}  // namespace megatron::config
