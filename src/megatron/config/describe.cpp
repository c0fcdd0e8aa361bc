#include <algorithm>
#include <functional>

#include "megatron/base/error.h"
#include "megatron/config/finetune_recipe.h"
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
  if (column + 2 > kTextColumn)
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

/// For a table.
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

namespace {

/// "FLOAT", "{adam,sgd}", "{core_attn,mlp}..."; "" of a switch.
std::string value_text(const Field& field) {
  if (field.meaning.choices.empty()) return metavar(field.value);
  std::string text;
  for (const std::string& choice : field.meaning.choices) text += (text.empty() ? "{" : ",") + choice;
  return text + (is_list(field.value) ? "}..." : "}");
}

/// The names of an option as an error or a script writes them. `short_name`: the shortest alone.
std::string names_text(const Field& field, bool in_section, bool short_name) {
  std::vector<std::string> names = {field.path};
  if (!in_section) std::replace(names[0].begin(), names[0].end(), '_', '-');  // in sections as a recipe has it
  for (const std::string& alias : field.aliases)
    if (normalized(alias) != normalized(field.path)) names.push_back(alias);
  if (short_name) names = {*std::ranges::min_element(names, {}, &std::string::size)};
  // A switch that is on is turned off by its name with "no-".
  if (is_bool(field.value) && plain_value(field.value) == "true") names.push_back("no-" + names.back());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "--" : ", --") + name;
  const std::string value = value_text(field);
  return value.empty() ? text : text + " " + value;
}

std::string option_text(const Field& field, bool in_section, bool short_name) {
  const std::string names = "  " + names_text(field, in_section, short_name);
  const bool off = is_bool(field.value) && plain_value(field.value) == "false";
  const std::string value = plain_value(field.value);
  return names + wrapped(field.help + (field.meaning.required ? " (required)"
                                       : off || value.empty() ? ""
                                                              : " (default " + value + ")"),
                         names.size());
}

/// The required and the common options, each by its shortest name.
std::string common_options(const Fields& fields) {
  // A recipe of `megatron finetune` has options of training, which that job refuses.
  const bool finetunes = std::ranges::find(fields.sections, "task", &Fields::Section::name) != fields.sections.end();
  std::string out = "\ncommon options\n";
  std::string sections;
  for_each(
      fields, [&](const Fields::Section& section) { sections += (sections.empty() ? "" : ", ") + section.name; },
      [&](const Field& field) {
        if (finetunes && field.meaning.only_in_training) return;
        if (field.meaning.required || field.meaning.common)
          out += option_text(field, !split_path(field.path).section.empty(), true);
      });
  return out + "\n--help all lists every option" +
         (sections.empty() ? "" : ", --help SECTION those of a section:\n  " + sections) + "\n";
}

}  // namespace

std::string help_text(const Fields& fields, const std::string& usage, const std::string& topic) {
  std::string out = usage.empty() ? "" : usage + "\n";
  const auto is_common = [](const Field& field) { return field.meaning.common; };
  if (topic.empty() && std::ranges::any_of(fields.fields, is_common)) return out + common_options(fields);
  const bool all = topic.empty() || topic == "all";
  if (!all && std::ranges::find(fields.sections, topic, &Fields::Section::name) == fields.sections.end()) {
    std::string list = "all";
    for (const Fields::Section& section : fields.sections) list += ", " + section.name;
    throw ConfigError(rule_got_fix("--help is followed by nothing or one of " + list + ".", topic, "--help all"));
  }
  bool shown = all, in_section = false;
  std::string title;
  for_each(
      fields,
      [&](const Fields::Section& section) {
        in_section = true;
        shown = all || section.name == topic;
        if (shown) out += "\n[" + section.name + "] " + section.help + "\n";
      },
      [&](const Field& field) {
        if (!shown) return;
        if (!in_section && field.title != title) out += "\n" + (title = field.title) + "\n";
        out += option_text(field, in_section, false);
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

/// " One of `l2`, `inf`."
std::string choices_text(const Field& field) {
  std::string text;
  for (const std::string& choice : field.meaning.choices) text += (text.empty() ? " One of `" : ", `") + choice + "`";
  return text.empty() ? "" : text + ".";
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
               cell(field.help) + choices_text(field) + " |\n";
      });
  return out;
}

void Remark::add_to(Field& field) const {
  if (apply_ == nullptr)
    field.aliases.emplace_back(static_cast<const char*>(what_), size_);
  else
    apply_(what_, &field, field.meaning);
}

void Remark::add_to(Meaning& section) const {
  if (apply_ != nullptr) apply_(what_, nullptr, section);
}

void FieldCollector::add(std::string_view name, std::string_view help, FieldValue value, Remarks remarks) {
  Field field{prefix_ + std::string(name), std::string(help), {}, value, title_, {}, section_};
  for (const Remark& remark : remarks) remark.add_to(field);
  result_.fields.push_back(std::move(field));
}

FieldCollector::Outer FieldCollector::enter(std::string_view name, std::string_view help, Remarks remarks) {
  Outer outer{prefix_, section_};
  prefix_ += name;
  result_.sections.push_back({prefix_, std::string(help)});
  prefix_ += '.';
  for (const Remark& remark : remarks) remark.add_to(section_);  // of every option in it
  return outer;
}

void FieldCollector::leave(Outer outer) {
  prefix_ = std::move(outer.prefix);
  section_ = std::move(outer.section);
}

RunConfig::RunConfig() = default;
RunConfig::RunConfig(const RunConfig&) = default;
RunConfig::RunConfig(RunConfig&&) noexcept = default;
RunConfig& RunConfig::operator=(const RunConfig&) = default;
RunConfig& RunConfig::operator=(RunConfig&&) noexcept = default;
RunConfig::~RunConfig() = default;

template void RunConfig::visit(FieldCollector& v);
template void FinetuneRecipe::visit(FieldCollector& v);

}  // namespace megatron::config
