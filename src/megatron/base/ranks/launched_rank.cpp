#include "megatron/base/ranks/launched_rank.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "megatron/base/error.h"
#include "megatron/base/machine/launcher.h"

namespace megatron {
namespace {

/// Reads variables, with errors that name them.
class Reader {
 public:
  Reader(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  const std::string& launcher() const { return launcher_; }
  const std::string* text(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? nullptr : &found->second;
  }

  std::string need_text(const std::string& name) const {
    if (const std::string* value = text(name)) return *value;
    throw ConfigError(rule_got_fix(concat("Under ", launcher_, " the variable ", name, " must be set."), "nothing",
                                   "start with the launcher itself, or set it on every rank"));
  }

  int need(const std::string& name, int low, int high) const {
    const std::string value = need_text(name);
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < low || number > high)
      throw ConfigError(rule_got_fix(
          concat("The variable ", name, " of ", launcher_, " must be a number from ", low, " to ", high, "."), value,
          "start with the launcher itself, or set it on every rank"));
    return number;
  }

  int get(const std::string& name, int low, int high, int otherwise) const {
    return text(name) ? need(name, low, high) : otherwise;
  }

 private:
  const Environment& environment_;
  std::string launcher_;
};

constexpr int kMaxRanks = 1 << 20;
constexpr int kDefaultPort = 29500;  // torchrun's

/// A port that ranks of one step of a job compute alike, and ranks of another step or job most likely do not.
int port_of_job(std::uint64_t job, std::uint64_t step = 0) {
  return 20000 + static_cast<int>((job % 20000 + step % 20000 * 97) % 20000);  // 97 and 20000 share no factor
}

std::uint64_t leading_number(const std::string& text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void take_common(const Reader& in, LaunchedRank& place, int default_port) {
  place.port = in.get("MASTER_PORT", 1, 65535, default_port);
  if (const auto* address = in.text("MASTER_ADDR")) place.address = *address;
  if (const auto* interface = in.text("GLOO_SOCKET_IFNAME")) place.interface = *interface;
  if (const auto* secret = in.text("MEGATRON_RUN_SECRET")) place.secret = *secret;
  if (const auto* file = in.text("MEGATRON_RUN_SECRET_FILE")) place.secret_file = *file;
  place.rank_0_speaks = in.text(kRank0SpeaksVariable) != nullptr;
  // Ranks of different attempts of a supervisor never meet.
  if (const auto* attempt = in.text(kAttemptVariable)) place.store_prefix += concat("/attempt ", *attempt);
}

void require_address(const Reader& in, const LaunchedRank& place) {
  if (in.text("MASTER_ADDR") || place.local_size == place.world_size) return;
  throw ConfigError(
      rule_got_fix(concat("Ranks on several hosts must know where to meet (", in.launcher(), ")."),
                   concat(place.local_size, " of ", place.world_size, " ranks on this host, no MASTER_ADDR"),
                   "set MASTER_ADDR to the host of rank 0 on every rank"));
}

LaunchedRank from_torchrun(const Reader& in) {
  LaunchedRank place;
  place.world_size = in.need("WORLD_SIZE", 1, kMaxRanks);
  place.rank = in.need("RANK", 0, place.world_size - 1);
  place.local_size = in.get("LOCAL_WORLD_SIZE", 1, place.world_size, 1);
  const int most = in.text("LOCAL_WORLD_SIZE") ? place.local_size - 1 : kMaxRanks;
  place.local_rank = in.get("LOCAL_RANK", 0, most, 0);
  in.need_text("MASTER_ADDR");
  take_common(in, place, kDefaultPort);
  if (const auto* kept = in.text("TORCHELASTIC_USE_AGENT_STORE")) place.store_is_kept = *kept == "True";
  return place;
}

/// What the variables of these names say. Without those of a host all ranks are on one.
LaunchedRank of_mpi(const Reader& in, const char* size, const char* rank, const char* local_size,
                    const char* local_rank) {
  LaunchedRank place;
  place.world_size = in.need(size, 1, kMaxRanks);
  place.rank = in.need(rank, 0, place.world_size - 1);
  place.local_size = in.get(local_size, 1, place.world_size, place.world_size);
  place.local_rank = in.get(local_rank, 0, place.local_size - 1, place.rank % place.local_size);
  return place;
}

LaunchedRank from_open_mpi(const Reader& in) {
  LaunchedRank place = of_mpi(in, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK");
  const auto* job = in.text("OMPI_MCA_ess_base_jobid");
  take_common(in, place, job ? port_of_job(leading_number(*job)) : kDefaultPort);
  require_address(in, place);
  return place;
}

LaunchedRank from_pmi(const Reader& in) {
  LaunchedRank place = of_mpi(in, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID");
  take_common(in, place, kDefaultPort);
  require_address(in, place);
  return place;
}

/// Tasks on node `node` of SLURM_TASKS_PER_NODE, "4(x2),3": four on each of two nodes, then three. 0: not said.
int tasks_on_node(const std::string& list, int node) {
  std::size_t at = 0;
  while (at < list.size()) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, end - at);
    const std::size_t times = item.find("(x");
    const int repeat = times == std::string::npos ? 1 : static_cast<int>(leading_number(item.substr(times + 2)));
    if (node < repeat) return static_cast<int>(std::min<std::uint64_t>(leading_number(item), kMaxRanks));
    node -= repeat;
    at = end + 1;
  }
  return 0;
}

LaunchedRank from_slurm(const Reader& in) {
  LaunchedRank place;
  place.world_size = in.need(in.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1, kMaxRanks);
  place.rank = in.need("SLURM_PROCID", 0, place.world_size - 1);
  place.local_rank = in.get("SLURM_LOCALID", 0, kMaxRanks, 0);
  const std::string* tasks = in.text("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks) tasks = in.text("SLURM_TASKS_PER_NODE");
  if (tasks)
    place.local_size = std::clamp(tasks_on_node(*tasks, in.get("SLURM_NODEID", 0, kMaxRanks, 0)), 1, place.world_size);
  const std::string* hosts = in.text("SLURM_STEP_NODELIST");
  if (!hosts) hosts = in.text("SLURM_JOB_NODELIST");
  if (!hosts) hosts = in.text("SLURM_NODELIST");
  if (hosts && !in.text("MASTER_ADDR")) place.address = expand_host_list(*hosts).front();
  if (!hosts && place.world_size > 1) in.need_text("MASTER_ADDR");
  const std::string *job = in.text("SLURM_JOB_ID"), *step = in.text("SLURM_STEP_ID");
  take_common(in, place, job ? port_of_job(leading_number(*job), step ? leading_number(*step) : 0) : kDefaultPort);
  return place;
}

LaunchedRank place_by(Launcher launcher, const Reader& in) {
  switch (launcher) {
    case Launcher::Torchrun:
      return from_torchrun(in);
    case Launcher::OpenMpi:
      return from_open_mpi(in);
    case Launcher::Pmi:
      return from_pmi(in);
    case Launcher::Slurm:
      break;
  }
  return from_slurm(in);
}

/// Without a launcher: variables that a host's script has set by hand, one of them forgotten, would make each host
/// train alone. RANK or WORLD_SIZE alone may be anybody's, and a world of one has no rank to name.
void refuse_half_of_torchrun(const Reader& in) {
  const std::string *rank = in.text("RANK"), *size = in.text("WORLD_SIZE");
  if ((rank == nullptr) == (size == nullptr) || (size != nullptr && *size == "1")) return;
  if (!in.text("MASTER_ADDR") && !in.text("LOCAL_RANK")) return;
  const bool has_rank = rank != nullptr;
  throw ConfigError(rule_got_fix(
      concat("Of torchrun's variables RANK and WORLD_SIZE both must be set, or neither."),
      concat(has_rank ? "RANK " : "WORLD_SIZE ", has_rank ? *rank : *size, ", no ", has_rank ? "WORLD_SIZE" : "RANK"),
      concat("set ", has_rank ? "WORLD_SIZE to the number of ranks" : "RANK to the rank's number",
             " on each, or start with torchrun; to train alone: unset ", has_rank ? "RANK" : "WORLD_SIZE")));
}

[[noreturn]] void bad_host_list(const std::string& list) {
  throw ConfigError(rule_got_fix("A host list reads name or name[a-b,c], joined by commas.", list,
                                 "MASTER_ADDR=HOST, and the list is not read"));
}

/// "001-003,007" appended to `prefix`: widths are kept.
void expand_ranges(const std::string& prefix, const std::string& ranges, const std::string& list,
                   std::vector<std::string>& hosts) {
  for (std::size_t at = 0; at <= ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', at), ranges.size());
    const std::string item = ranges.substr(at, end - at);
    const std::size_t dash = item.find('-');
    const std::string low = item.substr(0, dash), high = dash == std::string::npos ? low : item.substr(dash + 1);
    const auto digits = [](const std::string& s) {
      return !s.empty() && s.size() < 10 &&
             std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if (!digits(low) || !digits(high)) bad_host_list(list);
    const std::uint64_t first = leading_number(low), last = leading_number(high);
    if (last < first || last - first > kMaxRanks) bad_host_list(list);
    for (std::uint64_t i = first; i <= last; ++i) {
      const std::string number = std::to_string(i);
      hosts.push_back(prefix + std::string(low.size() > number.size() ? low.size() - number.size() : 0, '0') + number);
    }
    at = end + 1;
  }
}

}  // namespace

std::vector<std::string> expand_host_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size()), bracket = list.find('[', at);
    if (bracket < comma) {
      const std::size_t close = list.find(']', bracket);
      if (close == std::string::npos || (close + 1 < list.size() && list[close + 1] != ',')) bad_host_list(list);
      expand_ranges(list.substr(at, bracket - at), list.substr(bracket + 1, close - bracket - 1), list, hosts);
      at = close + 2;
      if (at > list.size()) break;
    } else {
      if (comma == at) bad_host_list(list);
      hosts.push_back(list.substr(at, comma - at));
      at = comma + 1;
    }
  }
  if (hosts.empty()) bad_host_list(list);
  return hosts;
}

std::optional<LaunchedRank> place_from(const Environment& environment) {
  const auto has = [&](const char* name) { return environment.contains(name) && !environment.at(name).empty(); };
  const auto found = launcher_of(environment);
  if (!found) {
    refuse_half_of_torchrun(Reader(environment, "torchrun"));
    return std::nullopt;
  }
  LaunchedRank place = place_by(found->launcher, Reader(environment, found->name));
  place.launcher = found->name;
  const bool counted =
      has("LOCAL_WORLD_SIZE") || has("OMPI_COMM_WORLD_LOCAL_SIZE") || has("MPI_LOCALNRANKS") || has("SLURM_PROCID");
  const bool all_here = counted && place.local_size == place.world_size;
  if (all_here && !place.store_is_kept && place.interface.empty()) place.address = "127.0.0.1";
  return place;
}

Environment environment_of(const LaunchedRank& place) {
  Environment variables{{"RANK", std::to_string(place.rank)},
                        {"WORLD_SIZE", std::to_string(place.world_size)},
                        {"LOCAL_RANK", std::to_string(place.local_rank)},
                        {"LOCAL_WORLD_SIZE", std::to_string(place.local_size)},
                        {"MASTER_ADDR", place.address},
                        {"MASTER_PORT", std::to_string(place.port)},
                        {"TORCHELASTIC_USE_AGENT_STORE", place.store_is_kept ? "True" : "False"}};
  if (!place.secret.empty()) variables.emplace("MEGATRON_RUN_SECRET", place.secret);
  if (!place.secret_file.empty()) variables.emplace("MEGATRON_RUN_SECRET_FILE", place.secret_file);
  if (place.rank_0_speaks) variables.emplace(kRank0SpeaksVariable, "1");
  return variables;
}

}  // namespace megatron
