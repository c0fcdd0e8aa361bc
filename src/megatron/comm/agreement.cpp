#include "megatron/comm/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "megatron/base/files/path_error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/comm/first_rank.h"

namespace megatron::comm {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 22;  // per rank: far more than a recipe
constexpr std::size_t kMaxShown = 96, kContext = 24;         // characters of a value, and those before a difference
constexpr std::size_t kMaxFacts = 12, kMaxValues = 6;        // that one message shows
constexpr const char* kNothing = "(nothing)";

/// What ranks say, and which say it: in the order of the lowest rank of each.
using Answers = std::vector<std::pair<std::string, std::vector<int>>>;

Answers answers_of(const std::vector<std::string>& by_rank) {
  Answers answers;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    auto same = std::ranges::find(
        answers, by_rank[r], [](const auto& answer) -> auto& { return answer.first; });
    if (same == answers.end()) {
      answers.emplace_back(by_rank[r], std::vector<int>());
      same = std::prev(answers.end());
    }
    same->second.push_back(static_cast<int>(r));
  }
  return answers;
}

/// "rank 1", "ranks 1, 3-5".
std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t first = i;
    while (i + 1 < ranks.size() && ranks[i + 1] == ranks[i] + 1) ++i;
    text += concat(first == 0 ? " " : ", ", ranks[first]);
    if (i > first) text += concat(i == first + 1 ? ", " : "-", ranks[i]);
  }
  return text;
}

/// 64 bits of FNV-1a: against chance, not against malice.
std::int64_t digest(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<std::int64_t>(hash);
}

at::Device device_of(const Group& group) { return group.backend() ? group.backend()->device() : at::Device(at::kCPU); }

/// The number of every rank, by rank.
std::vector<std::int64_t> gather_number(const Group& group, std::int64_t number) {
  at::Tensor own = at::empty({1}, at::kLong);
  own.fill_(number);
  const at::Tensor all = group.all_gather(own.to(device_of(group))).cpu();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

// Before the name of a fact that is unread, by what is wrong with the command or not: no name begins with them.
constexpr char kUnreadOfConfig = '!', kUnread = '?';

// A text of pairs, each part ended by a NUL: neither options nor their values hold one.
std::string to_text(const Facts& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    if (fact.is_unread) text += fact.is_config ? kUnreadOfConfig : kUnread;
    text += std::string(fact.name.c_str()) + '\0' + fact.value.c_str() + '\0';
  }
  return text;
}

Facts facts_of(const std::string& text) {
  Facts facts;
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; (end = text.find('\0', begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2) {
    const bool is_config = !parts[i].starts_with(kUnread),
               is_unread = !is_config || parts[i].starts_with(kUnreadOfConfig);
    facts.push_back({parts[i].substr(is_unread ? 1 : 0), parts[i + 1], is_unread, is_config});
  }
  return facts;
}

/// What a peer has sent, for a terminal.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' ? ' ' : '?';
  return text;
}

/// The value from shortly before byte `difference` on where it is too long to show whole.
std::string shown(const std::string& value, std::size_t difference) {
  if (value.empty()) return kNothing;
  if (value.size() <= kMaxShown) return printable(value);
  const std::size_t begin = difference > kContext ? difference - kContext : 0;
  const std::size_t size = std::min(kMaxShown, value.size() - begin);
  return printable(concat(begin > 0 ? "…" : "", value.substr(begin, size), begin + size < value.size() ? "…" : ""));
}

/// Up to which byte all values are equal.
std::size_t common_size(const Answers& answers) {
  std::size_t size = answers[0].first.size();
  for (const auto& [value, ranks] : answers) {
    const std::size_t most = std::min(size, value.size());
    for (size = 0; size < most && value[size] == answers[0].first[size];) ++size;
  }
  return size;
}

/// "rank 1: 0.001; the others: 0.0003": those of whom there are most last, where they are most of many.
std::string text_of(const std::string& name, Answers answers, int size) {
  const std::size_t difference = common_size(answers);
  const auto most =
      std::ranges::max_element(answers, {}, [](const auto& answer) { return answer.second.size(); }) - answers.begin();
  const bool others =
      size > 2 && answers[static_cast<std::size_t>(most)].second.size() * 2 > static_cast<unsigned>(size);
  if (others) std::rotate(answers.begin() + most, answers.begin() + most + 1, answers.end());
  std::string text = name + ": ";
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const bool last = i + 1 == answers.size();
    if (i > 0) text += "; ";
    if (i == kMaxValues && !last) return text + concat("and ", answers.size() - i, " more values");
    const auto& [value, ranks] = answers[i];
    text += concat(last && others ? "the others" : list_ranks(ranks), ": ", shown(value, difference));
  }
  return text;
}

/// What of the facts differs, a line each, in the order in which ranks name them.
std::string differences(const std::vector<Facts>& by_rank) {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> values;
  for (const Facts& facts : by_rank) {
    auto& own = values.emplace_back();
    for (const Fact& fact : facts)
      if (own.emplace(fact.name, fact.value).second && std::ranges::find(names, fact.name) == names.end())
        names.push_back(fact.name);
  }
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    std::vector<std::string> said;
    for (const auto& own : values) said.push_back(own.contains(name) ? own.at(name) : "");
    const Answers answers = answers_of(said);
    if (answers.size() > 1 && ++count <= kMaxFacts)
      text += (text.empty() ? "" : "\n        ") + text_of(printable(name), answers, static_cast<int>(by_rank.size()));
  }
  if (count > kMaxFacts) text += concat("\n        and ", count - kMaxFacts, " more");
  return text;
}

/// One text of all ranks' problems, each with its ranks; "" where no rank has one. `problems`: by rank, "" for none.
std::string problem_text(const std::vector<std::string>& problems) {
  std::string text;
  for (const auto& [problem, ranks] : answers_of(problems)) {
    if (problem.empty()) continue;
    const bool all = ranks.size() == problems.size();
    text += (text.empty() ? "" : "\n") + (all ? problem : concat(list_ranks(ranks), ": ", problem));
  }
  return text;
}

/// Lets a rank that is about to end wait for those that have yet to read what it has sent.
void part(const Group& group) {
  try {
    group.barrier();
  } catch (const PeerError&) {  // a peer has ended before: it knew what this rank knows
  }
}

/// Throws for what the ranks' texts say, which differ.
[[noreturn]] void fail_for(const Group& group, const Facts& own) {
  const std::vector<std::string> texts = gather_texts(group, to_text(own));
  part(group);
  std::vector<Facts> facts;
  std::vector<Problem> problems;
  for (const std::string& text : texts) {
    facts.push_back(facts_of(text));
    Problem& problem = problems.emplace_back();
    for (const Fact& fact : facts.back()) {
      if (fact.is_unread) problem.text += (problem.text.empty() ? "" : "\n") + fact.value;
      problem.is_config = problem.is_config && fact.is_config;
    }
  }
  throw_problems(problems);
  throw AgreedError(rule_got_fix(
      "All ranks must be started with the same options, and see the same program, tokenizer, data and checkpoint.",
      differences(facts), "start every rank with the same command, and give every machine the same files"));
}

}  // namespace

std::vector<std::string> gather_texts(const Group& group, const std::string& text) {
  const std::string own = text.substr(0, kMaxTextBytes);
  if (group.size() == 1) return {own};
  const std::vector<std::int64_t> sizes = gather_number(group, static_cast<std::int64_t>(own.size()));
  const auto [shortest, longest_place] = std::ranges::minmax_element(sizes);
  const std::int64_t longest = *longest_place;
  if (*shortest < 0 || longest > static_cast<std::int64_t>(kMaxTextBytes))
    throw PeerError(concat("a rank says that its text has ", *shortest < 0 ? *shortest : longest, " bytes"));
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  const at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor all = group.all_gather(bytes.to(device_of(group))).cpu();
  const char* from = static_cast<const char*>(all.const_data_ptr());
  for (std::size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(from + static_cast<std::int64_t>(r) * longest, static_cast<std::size_t>(sizes[r]));
  return texts;
}

void require_agreement(const Group& group, const Facts& facts) {
  if (group.size() == 1) return;
  const std::vector<std::int64_t> digests = gather_number(group, digest(to_text(facts)));
  if (std::ranges::all_of(digests, [&](std::int64_t other) { return other == digests[0]; })) return;
  fail_for(group, facts);
}

Problem problem_of(const std::exception& error) {
  const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  Problem problem{.text = message_of(error),
                  .is_config = dynamic_cast<const ConfigError*>(&error) != nullptr || (path && is_wrong_path(*path))};
  if (problem.text.empty()) problem.text = "an error without a message";
  return problem;
}

void throw_problems(const std::vector<Problem>& by_rank) {
  std::vector<std::string> texts;
  bool is_config = true;
  for (const Problem& problem : by_rank) {
    texts.push_back(problem.text);
    is_config = is_config && problem.is_config;
  }
  const std::string text = problem_text(texts);
  if (text.empty()) return;
  if (is_config) throw AgreedError(text);
  throw AgreedFailure(text);
}

void run_together(const Group& group, const std::function<void()>& work, std::chrono::milliseconds beat) {
  if (group.size() == 1) {
    try {
      return work();
    } catch (const ConfigError& error) {
      throw AgreedError(error.what());
    } catch (const std::filesystem::filesystem_error& error) {
      if (is_wrong_path(error)) throw AgreedError(path_error(error));
      throw;
    }
  }
  Problem own;
  run_on_every_rank(
      group,
      [&] {
        try {
          work();
        } catch (const std::exception& error) {
          own = problem_of(error);
        }
      },
      beat);
  const std::vector<std::string> texts = gather_texts(group, own.text);
  if (std::ranges::all_of(texts, &std::string::empty)) return;
  const std::vector<std::int64_t> of_config = gather_number(group, own.is_config ? 1 : 0);
  part(group);
  std::vector<Problem> problems;
  for (std::size_t r = 0; r < texts.size(); ++r) problems.push_back({texts[r], of_config[r] != 0});
  throw_problems(problems);
}

}  // namespace megatron::comm
