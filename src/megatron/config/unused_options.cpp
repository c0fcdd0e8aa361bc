#include "megatron/config/unused_options.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megatron/base/text/nearest.h"
#include "megatron/config/value.h"

namespace megatron::config {
namespace {

const Field& field_of(const Fields& fields, const std::string& path) {
  const auto found = std::ranges::find(fields.fields, path, &Field::path);
  if (found == fields.fields.end()) throw std::logic_error("no option is named " + path);
  return *found;
}

/// A condition that does not hold: "with --optimizer sgd", "without --eval-interval".
std::string why(const Condition& condition, const Field& field) {
  const std::string flag = "--" + (field.aliases.empty() ? field.path : field.aliases.front());
  if (condition.is == Condition::Is::On) return "without " + flag;
  return "with " + flag + (condition.is == Condition::Is::Off ? "" : " " + plain_value(field.value));
}

/// Why an option is not read; "" where it is. Of several that do not hold the first.
std::string why_unread(const Field& option, const Fields& fields) {
  for (const When& when : option.meaning.where) {
    std::string reason;
    bool holds = false;
    for (const Condition& condition : when.any) {
      const Field& field = field_of(fields, condition.option);
      holds = holds || condition.holds(plain_value(field.value));
      reason += (reason.empty() ? "" : " and ") + why(condition, field);
    }
    if (!holds) return reason;
  }
  return "";
}

}  // namespace

bool Condition::holds(const std::string& value) const {
  const bool off = value.empty() || value == "false" || value == "0";
  const bool among = std::find(values.begin(), values.end(), value) != values.end();
  return is == Is::On ? !off : is == Is::Off ? off : among == (is == Is::OneOf);
}

bool is_read(const Field& option, const Fields& fields) { return why_unread(option, fields).empty(); }

std::string unread_note(RunConfig config, const std::map<std::string, std::string>& given) {
  const Fields fields = fields_of(config);
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;  // each with the options that it is one for
  for (const Field& option : fields.fields) {
    const auto word = given.find(option.path);
    if (word == given.end()) continue;
    const std::string reason = why_unread(option, fields);
    if (reason.empty()) continue;
    auto entry = std::find_if(reasons.begin(), reasons.end(), [&](const auto& known) { return known.first == reason; });
    if (entry == reasons.end()) entry = reasons.insert(entry, {reason, {}});
    entry->second.push_back(word->second);
  }
  std::string note;
  for (const auto& [reason, options] : reasons) {
    note += note.empty() ? "note: " : "; ";
    note += listed(options, " and ") + (options.size() == 1 ? " has no effect " : " have no effect ") + reason;
  }
  return note;
}

}  // namespace megatron::config
