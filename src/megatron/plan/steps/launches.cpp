#include "megatron/plan/steps/launches.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron::plan {
namespace {

/// By stream the last launch of it that is over before a launch begins, -1: none.
using Over = std::vector<int>;

std::vector<Over> orders(const LaunchPlan& plan) {
  std::vector<Over> before;
  std::vector<int> last(plan.streams.size(), -1);
  for (int i = 0; i < static_cast<int>(plan.launches.size()); ++i) {
    const Launch& launch = plan.launches[static_cast<std::size_t>(i)];
    if (launch.stream < 0 || launch.stream >= static_cast<int>(plan.streams.size()))
      throw std::logic_error(concat(launch.name, ": on a stream that the plan lacks"));
    Over over(plan.streams.size(), -1);
    const auto join = [&](int earlier) {
      const Over& its = before[static_cast<std::size_t>(earlier)];
      for (std::size_t s = 0; s < over.size(); ++s) over[s] = std::max(over[s], its[s]);
      int& own = over[static_cast<std::size_t>(plan.launches[static_cast<std::size_t>(earlier)].stream)];
      own = std::max(own, earlier);
    };
    int& previous = last[static_cast<std::size_t>(launch.stream)];
    if (previous >= 0) join(previous);
    for (const int event : launch.after) {
      if (event < 0 || event >= i) throw std::logic_error(concat(launch.name, ": waits for what is launched later"));
      join(event);
    }
    previous = i;
    before.push_back(std::move(over));
  }
  return before;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

void validate(const LaunchPlan& plan) {
  const std::vector<Over> before = orders(plan);
  const auto ordered = [&](int first, int second) {
    const int stream = plan.launches[static_cast<std::size_t>(first)].stream;
    return before[static_cast<std::size_t>(second)][static_cast<std::size_t>(stream)] >= first;
  };
  std::map<std::string, std::vector<int>> users;
  for (int i = 0; i < static_cast<int>(plan.launches.size()); ++i) {
    const Launch& launch = plan.launches[static_cast<std::size_t>(i)];
    const auto meet = [&](const std::string& buffer, bool writes) {
      for (const int earlier : users[buffer]) {
        const Launch& other = plan.launches[static_cast<std::size_t>(earlier)];
        if ((writes || has(other.writes, buffer)) && !ordered(earlier, i))
          throw std::logic_error(concat(launch.name, " (", i, ") and ", other.name, " (", earlier, ") use ", buffer,
                                        " on streams that no event orders"));
      }
    };
    for (const std::string& buffer : launch.reads) {
      if (users[buffer].empty() && !has(plan.inputs, buffer))
        throw std::logic_error(concat(launch.name, " reads ", buffer, ", which nothing has written"));
      meet(buffer, false);
    }
    for (const std::string& buffer : launch.writes) meet(buffer, true);
    for (const auto* names : {&launch.reads, &launch.writes})
      for (const std::string& buffer : *names) users[buffer].push_back(i);
  }
}

std::string launch_text(const LaunchPlan& plan) {
  std::string text = fmt::format("{:>3}  {:34} {:16} {:>9}  {}\n", "", "launch", "stream", "MB", "waits for");
  double bytes = 0;
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    std::string events;
    for (const int event : launch.after) events += concat(events.empty() ? "" : ", ", event);
    text += fmt::format("{:>3}  {:34} {:16} {:>9.1f}  {}", i, launch.name,
                        plan.streams[static_cast<std::size_t>(launch.stream)], launch.bytes / 1e6, events);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
    bytes += launch.bytes;
  }
  return text + fmt::format("{} operators a layer, {:.2f} GB of memory traffic\n", plan.launches.size(), bytes / 1e9);
}

}  // namespace megatron::plan
