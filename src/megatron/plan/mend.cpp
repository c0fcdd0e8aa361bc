#include "megatron/plan/mend.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"

namespace megatron::plan {
namespace {

constexpr const char* kGotLine = "  got:  ";
constexpr const char* kFixLine = "  fix:  ";
constexpr int kMaxFixTrials = 1500;
constexpr std::size_t kMaxTriedValues = 8;  // of one option that the search tries

std::string line_after(const std::string& head, const std::string& tail) {
  return head.empty() ? tail : tail.empty() ? head : head + "\n" + tail;
}

/// Words as a shell reads them, as far as messages quote: 'a b' and "a b" are one word.
std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      begun = true;
    } else if (c == ' ' || c == '\n') {
      if (begun) words.push_back(std::exchange(word, ""));
      begun = false;
    } else {
      word += c;
      begun = true;
    }
  }
  if (begun) words.push_back(word);
  return words;
}

bool is_option_word(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

/// Takes the ',' or ';' off that ends a word; whether there was one.
bool strip_end(std::string& word) {
  if (word.empty() || (word.back() != ',' && word.back() != ';')) return false;
  word.pop_back();
  return true;
}

std::string shell_quoted(const std::string& value) {
  const bool plain = !value.empty() && std::ranges::all_of(value, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_=+.,:/@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? value : "\"" + value + "\"";
}

/// An option and the value to give it, as text.
struct Setting {
  std::string path, value;
};

/// Configurations near one that breaks rules.
class Mender {
 public:
  Mender(const config::RunConfig& config, const Facts& facts, const Check& check)
      : config_(config), facts_(facts), check_(check) {
    config::RunConfig defaults;
    for (const config::Field& field : config::fields_of(defaults).fields) {
      std::string flag = field.path;
      for (const std::string& alias : field.aliases)
        if (flag == field.path || alias.size() < flag.size()) flag = alias;
      options_.push_back(
          {field.path, config::plain_value(field.value), flag, config::is_list(field.value), field.aliases});
    }
  }

  using Settings = std::vector<Setting>;

  /// What `fix` sets; nothing where it is prose, or names what no option is or takes.
  std::optional<Settings> settings_of(const std::string& fix) const {
    const Amendment amendment = amendment_of(fix);
    if (amendment.empty()) return std::nullopt;
    Settings settings;
    for (const std::string& word : amendment.left_out) {
      const Option* option = find(word.substr(2));
      if (option == nullptr) return std::nullopt;
      settings.push_back({option->path, option->usual});
    }
    for (std::size_t i = 0; i < amendment.words.size();) {
      const std::string word = amendment.words[i++];
      const std::size_t equals = word.find('=');
      const Option* option = find(word.substr(2, equals == std::string::npos ? equals : equals - 2));
      std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
      while (i < amendment.words.size() && !is_option_word(amendment.words[i]))
        value += (value.empty() ? "" : " ") + amendment.words[i++];
      if (option == nullptr && word.starts_with("--no-")) {
        option = find(word.substr(5));
        value = "false";
      }
      if (option == nullptr) return std::nullopt;
      if (value.empty() && equals == std::string::npos) value = "true";
      settings.push_back({option->path, value});
    }
    return settings;
  }

  /// `config` with the settings, until the next call; null where a value is none of its option.
  config::RunConfig* applied(const config::RunConfig& config, const Settings& settings) {
    changed_ = config;
    for (const Setting& setting : settings) {
      const auto field = std::ranges::find(changed_fields_.fields, setting.path, &config::Field::path);
      const bool empty_list = setting.value.empty() && config::is_list(field->value);
      const auto words = empty_list                      ? std::vector<std::string>()
                         : config::is_list(field->value) ? shell_words(setting.value)
                                                         : std::vector{setting.value};
      const auto value = config::parse_value(field->value, words);
      if (!value) return nullptr;
      config::assign(field->value, *value);
    }
    return &changed_;
  }

  /// The rules that `config` breaks with the settings; nothing where they cannot be set, or no trial is left.
  std::optional<std::set<std::string>> broken(const config::RunConfig& config, const Settings& settings) {
    if (trials_ >= kMaxFixTrials || !has_all(settings)) return std::nullopt;
    config::RunConfig* const changed = applied(config, settings);
    if (changed == nullptr) return std::nullopt;
    ++trials_;
    if (facts_.complete) facts_.complete(*changed);
    std::set<std::string> rules;
    for (const Violation& violation : violations_in(check_(*changed))) rules.insert(violation.rule);
    return rules;
  }

  /// How the job's user types them.
  std::string text_of(const Settings& settings) const {
    std::string text;
    for (const Setting& setting : settings) {
      const std::string flag = flag_of(setting.path);
      text += (text.empty() ? "--" : " --") + flag;
      // A list's words are given one by one.
      const auto words = find(setting.path)->is_list ? shell_words(setting.value) : std::vector{setting.value};
      for (const std::string& word : words) text += " " + shell_quoted(word);
    }
    return text;
  }

  /// Single changes that may mend a violation, the nearest first: of options that it names, of the layout, of the
  /// network.
  std::vector<Setting> candidates(const Violation& violation) const {
    std::vector<Setting> result;
    const auto add = [&](const std::string& path, const std::string& value) {
      const bool known = std::ranges::any_of(
          result, [&](const Setting& setting) { return setting.path == path && setting.value == value; });
      if (!known && has(path)) result.push_back({path, value});
    };
    const std::string text = violation.rule + " " + violation.got;
    const auto& parallel = config_.parallel;
    const auto& train = config_.train;
    for (const std::int64_t tp : divisors(config_.model.num_attention_heads, parallel.tp))
      add("parallel.tp", std::to_string(tp));
    for (const std::int64_t pp : divisors(config_.model.num_layers, parallel.pp))
      add("parallel.pp", std::to_string(pp));
    if (parallel.pp > 1 && parallel.pp_layout != "balanced" && text.find("layers") != std::string::npos)
      add("parallel.pp_layout", "balanced");
    double least_lr = config_.schedule.min_lr;
    add("schedule.lr", config::plain_value(config::FieldValue(&least_lr)));
    add("parallel.vpp", "1");
    add("parallel.vpp", "2");
    add("parallel.pp_schedule", "auto");
    add("parallel.dp", "0");
    add("train.micro_batch_size", "1");
    const std::int64_t micro = std::clamp<std::int64_t>(train.micro_batch_size, 1, 1 << 20);
    const std::int64_t batch = std::clamp<std::int64_t>(train.global_batch_size, 1, 1 << 28);
    for (std::int64_t dp = 1; dp <= 64; dp = dp < 8 ? dp + 1 : dp * 2)
      add("train.global_batch_size", std::to_string((batch + micro * dp - 1) / (micro * dp) * micro * dp));
    add("train.global_batch_size", "0");
    for (const std::int64_t world : worlds()) add("parallel.world_size", std::to_string(world));
    // What the message names comes first, but the network changes only where nothing else helps.
    std::vector<Setting> named, network;
    for (const Option& option : options_)
      if (names(text, option.path) && has(option.path)) {
        std::vector<Setting>& to = option.path.starts_with("model.") ? network : named;
        std::ranges::copy_if(result, std::back_inserter(to),
                             [&](const Setting& setting) { return setting.path == option.path; });
        if (!option.usual.empty() || option.is_list) to.push_back({option.path, option.usual});
      }
    for (const Setting& setting : named)
      std::erase_if(result, [&](const Setting& other) { return other.path == setting.path; });
    named.insert(named.end(), result.begin(), result.end());
    named.insert(named.end(), network.begin(), network.end());
    return named;
  }

  /// Whether what a rule proposes must be written again: the job has names of its own for options, or a launcher has
  /// set the number of ranks, and a rule's second proposal may be about it.
  bool rewrites() const { return !facts_.flags.empty() || facts_.launched_world_size > 0; }
  bool has_own_names() const { return !facts_.flags.empty(); }
  const std::string& otherwise() const { return facts_.otherwise; }

 private:
  struct Option {
    std::string path, usual, flag;
    bool is_list;
    std::vector<std::string> aliases;
  };

  const Option* find(const std::string& name) const {
    const std::string wanted = config::normalized(name);
    for (const Option& option : options_)
      if (config::normalized(option.path) == wanted ||
          std::ranges::any_of(option.aliases, [&](const auto& alias) { return config::normalized(alias) == wanted; }))
        return &option;
    for (const auto& [path, flag] : facts_.flags)
      if (config::normalized(flag) == wanted) return find(path);
    return nullptr;
  }

  bool has(const std::string& path) const {
    return facts_.flags.empty() || facts_.flags.contains(path) ||
           facts_.flags.contains(config::split_path(path).section + ".");
  }

  bool has_all(const Settings& settings) const {
    return std::ranges::all_of(settings, [&](const Setting& setting) { return has(setting.path); });
  }

  std::string flag_of(const std::string& path) const {
    const auto entry = facts_.flags.find(path);
    if (entry != facts_.flags.end()) return entry->second;
    if (!facts_.flags.empty()) return path;  // of a section that the job has whole
    return find(path)->flag;
  }

  /// Whether `path` stands in the text as a word of its own.
  static bool names(const std::string& text, const std::string& path) {
    const auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    for (std::size_t at = text.find(path); at != std::string::npos; at = text.find(path, at + 1)) {
      const std::size_t end = at + path.size();
      if ((at == 0 || !part(text[at - 1])) && (end >= text.size() || !part(text[end]))) return true;
    }
    return false;
  }

  /// Divisors of `of`, those nearest to `wanted` first.
  static std::vector<std::int64_t> divisors(std::int64_t of, std::int64_t wanted) {
    std::vector<std::int64_t> result;
    for (std::int64_t d = 1; d <= std::min<std::int64_t>(of, 1 << 10); ++d)
      if (of % d == 0) result.push_back(d);
    std::ranges::stable_sort(result, {}, [&](std::int64_t d) { return std::abs(d - wanted); });
    if (result.size() > kMaxTriedValues) result.resize(kMaxTriedValues);
    return result;
  }

  /// Numbers of ranks that layouts near this one have, the nearest first.
  std::vector<std::int64_t> worlds() const {
    const std::int64_t asked = std::clamp(config_.parallel.world_size, 1, 1 << 15);
    std::set<std::int64_t> numbers = {1, 2, 4, 8};
    for (const std::int64_t tp : divisors(config_.model.num_attention_heads, config_.parallel.tp))
      for (const std::int64_t pp : divisors(config_.model.num_layers, config_.parallel.pp)) {
        const std::int64_t model = tp * pp * std::clamp(config_.parallel.cp, 1, 1 << 10);
        numbers.insert(model);
        numbers.insert(std::max<std::int64_t>(1, asked / model) * model);
      }
    std::vector<std::int64_t> result(numbers.begin(), numbers.end());
    std::ranges::stable_sort(result, {}, [&](std::int64_t n) { return std::abs(n - asked); });
    if (result.size() > kMaxTriedValues) result.resize(kMaxTriedValues);
    return result;
  }

  const config::RunConfig& config_;
  const Facts& facts_;
  const Check& check_;
  std::vector<Option> options_;
  config::RunConfig changed_;  ///< of a trial; its options are listed once
  config::Fields changed_fields_ = config::fields_of(changed_);
  int trials_ = 0;
};

using Settings = Mender::Settings;
using RuleSet = std::set<std::string>;

/// Chooses a fix for each violation, one after another.
class Advice {
 public:
  Advice(const std::string& message, const config::RunConfig& config, const Facts& facts, const Check& check)
      : mender_(config, facts, check), original_(config), current_(config), violations_(violations_in(message)) {
    for (const Violation& violation : violations_) {
      all_.insert(violation.rule);
      own_.push_back(mender_.settings_of(violation.fix));
    }
    open_ = all_;
  }

  std::string text() {
    for (std::size_t i = 0; i < violations_.size(); ++i) choose(i);
    for (std::size_t i = 0; i < violations_.size(); ++i) agree(i);
    std::string text;
    for (const Violation& violation : violations_)
      text = line_after(text, rule_got_fix(violation.rule, violation.got, violation.fix));
    return text;
  }

 private:
  struct Chosen {
    Settings settings;
    std::string text;
  };

  /// Whether the rules are some of `before` without `rule`.
  static bool only_mends(const RuleSet& after, const RuleSet& before, const std::string& rule) {
    return !after.contains(rule) && std::ranges::includes(before, after);
  }

  /// The rules that stay broken after the fixes chosen so far and this one; nothing where it is no fix of the rule.
  std::optional<RuleSet> left_by(const Settings& settings, const std::string& rule) {
    const auto after = mender_.broken(current_, settings);
    if (!after || !only_mends(*after, open_, rule)) return std::nullopt;
    if (chosen_.empty()) return after;  // nothing is applied yet: the same
    const auto alone = mender_.broken(original_, settings);
    if (!alone || !only_mends(*alone, all_, rule)) return std::nullopt;
    return after;
  }

  void take(std::size_t index, const Settings& settings, const std::string& text, RuleSet left) {
    violations_[index].fix = text;
    current_ = *mender_.applied(current_, settings);
    open_ = std::move(left);
    chosen_.push_back({settings, text});
  }

  void choose(std::size_t index) {
    const std::string rule = violations_[index].rule;
    if (!open_.contains(rule))
      for (const Chosen& before : chosen_) {
        const auto alone = mender_.broken(original_, before.settings);
        if (alone && only_mends(*alone, all_, rule)) {
          violations_[index].fix = before.text;
          return;
        }
      }
    // The rule's own proposal, unless one that another rule makes leaves less.
    std::optional<std::size_t> best;
    RuleSet least;
    for (std::size_t k = 0; k < violations_.size(); ++k) {
      const std::size_t other = k == 0 ? index : k <= index ? k - 1 : k;
      if (!own_[other]) continue;
      const auto left = left_by(*own_[other], rule);
      if (!left || (best && left->size() >= least.size())) continue;
      best = other;
      least = *left;
    }
    if (best) return take(index, *own_[*best], shown(*own_[*best], violations_[*best].fix), std::move(least));
    if (!own_[index] && !violations_[index].fix.empty() && amendment_of(violations_[index].fix).empty())
      return;  // prose stays: it is about no option
    if (!search(index) && mender_.has_own_names()) violations_[index].fix = mender_.otherwise();
  }

  /// Two fixes of one message that give an option two values are right one after the other, the last of an option being
  /// the one that holds, but no reader takes them so: where the later one mends the earlier rule as well, it is the fix
  /// of both.
  void agree(std::size_t index) {
    const auto mine = settings_of(index);
    if (!mine) return;
    for (std::size_t k = violations_.size(); k-- > 0;) {
      const auto other = settings_of(k);
      if (k == index || !other || !contradict(*mine, *other)) continue;
      const auto alone = mender_.broken(original_, *other);
      if (!alone || !only_mends(*alone, all_, violations_[index].rule)) continue;
      const std::string before = std::exchange(violations_[index].fix, violations_[k].fix);
      if (left_together() <= open_.size()) return;
      violations_[index].fix = before;
    }
  }

  /// What the fix of a violation sets, as it was chosen.
  std::optional<Settings> settings_of(std::size_t index) const {
    for (const Chosen& chosen : chosen_)
      if (chosen.text == violations_[index].fix) return chosen.settings;
    return std::nullopt;
  }

  static bool contradict(const Settings& one, const Settings& other) {
    return std::ranges::any_of(one, [&](const Setting& mine) {
      return std::ranges::any_of(other,
                                 [&](const Setting& its) { return mine.path == its.path && mine.value != its.value; });
    });
  }

  /// How many rules stay broken after all fixes, one after another.
  std::size_t left_together() {
    Settings all;
    for (std::size_t i = 0; i < violations_.size(); ++i)
      if (const auto settings = settings_of(i)) all.insert(all.end(), settings->begin(), settings->end());
    const auto left = mender_.broken(original_, all);
    return left ? left->size() : violations_.size();
  }

  /// A proposal in the job's words: as it is where the job has all options by their own names.
  std::string shown(const Settings& settings, const std::string& fix) const {
    return mender_.rewrites() || !mender_.settings_of(fix) ? mender_.text_of(settings) : fix;
  }

  bool search(std::size_t index) {
    const std::string rule = violations_[index].rule;
    const std::vector<Setting> single = mender_.candidates(violations_[index]);
    const auto attempt = [&](const Settings& settings) {
      for (std::size_t a = 0; a < settings.size(); ++a)
        for (std::size_t b = 0; b < a; ++b)
          if (settings[a].path == settings[b].path) return false;
      auto left = left_by(settings, rule);
      if (!left) return false;
      take(index, settings, mender_.text_of(settings), std::move(*left));
      return true;
    };
    for (const Setting& a : single)
      if (attempt({a})) return true;
    for (std::size_t b = 0; b < single.size(); ++b)
      for (std::size_t a = 0; a < b; ++a)
        if (attempt({single[a], single[b]})) return true;
    // Three at once: the nearest values of each option.
    std::vector<Setting> nearest;
    for (const Setting& setting : single)
      if (std::ranges::count(nearest, setting.path, &Setting::path) < 3) nearest.push_back(setting);
    for (std::size_t c = 0; c < nearest.size(); ++c)
      for (std::size_t b = 0; b < c; ++b)
        for (std::size_t a = 0; a < b; ++a)
          if (attempt({nearest[a], nearest[b], nearest[c]})) return true;
    return false;
  }

  Mender mender_;
  const config::RunConfig& original_;
  config::RunConfig current_;
  std::vector<Violation> violations_;
  std::vector<std::optional<Settings>> own_;  ///< what each rule proposes
  std::vector<Chosen> chosen_;
  RuleSet all_, open_;
};

}  // namespace

std::vector<Violation> violations_in(const std::string& message) {
  std::vector<Violation> violations;
  std::istringstream lines(message);
  enum class In { Rule, Got, Fix } in = In::Fix;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kGotLine) && !violations.empty()) {
      in = In::Got;
      violations.back().got = line.substr(std::string_view(kGotLine).size());
    } else if (line.starts_with(kFixLine) && !violations.empty()) {
      in = In::Fix;
      violations.back().fix = line.substr(std::string_view(kFixLine).size());
    } else if (in != In::Rule && !line.starts_with("  ")) {
      in = In::Rule;
      violations.push_back({line, "", ""});
    } else if (!violations.empty()) {
      Violation& last = violations.back();
      std::string& text = in == In::Rule ? last.rule : in == In::Got ? last.got : last.fix;
      text = line_after(text, line);
    }
  }
  return violations;
}

Amendment amendment_of(const std::string& fix) {
  Amendment amendment;
  const std::vector<std::string> words = shell_words(fix);
  if (words.empty()) return amendment;
  if (words[0] == "leave") {
    for (std::size_t i = 1; i < words.size(); ++i) {
      std::string word = words[i];
      strip_end(word);
      if (word == "out") return amendment;
      if (is_option_word(word))
        amendment.left_out.push_back(word);
      else if (word != "and")
        return {};
    }
    return {};
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    if (amendment.words.empty() && !is_option_word(word)) return {};
    if (word == "or" || word == "and" || word.starts_with('(')) break;
    const bool last = strip_end(word);
    amendment.words.push_back(word);
    if (last) break;
  }
  return amendment;
}

std::string with_working_fixes(const std::string& message, const config::RunConfig& config, const Facts& facts,
                               const Check& check) {
  return Advice(message, config, facts, check).text();
}

}  // namespace megatron::plan
