#include "megatron/train/checked_passes.h"

#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/comm/agreement.h"
#include "megatron/plan/ranks/copies.h"
#include "megatron/train/log/timers.h"

namespace megatron::train {
namespace {

std::string machine_of(at::Device device) {
  std::array<char, 256> host{};
  const bool named = ::gethostname(host.data(), host.size() - 1) == 0;
  return concat(named ? host.data() : "an unnamed host", device.is_cpu() ? "" : ", device " + device.str());
}

std::string hexadecimal(std::uint64_t number) { return fmt::format("{:016x}", number); }

/// Every rank's checksum, by rank: as halves, which numbers of a message have exactly.
std::vector<std::uint64_t> gather_checksums(const comm::Group& world, std::uint64_t own) {
  const auto halves = gathered(world, {static_cast<double>(own >> 32), static_cast<double>(own & 0xffffffffU)});
  std::vector<std::uint64_t> all;
  all.reserve(halves.size());
  for (const std::vector<double>& of : halves)
    all.push_back(static_cast<std::uint64_t>(of[0]) << 32 | static_cast<std::uint64_t>(of[1]));
  return all;
}

}  // namespace

void GradientChecksum::add(const parallel::Parameter& parameter, std::int64_t round) {
  const at::Tensor gradient = parameter.grad.contiguous().cpu();  // itself where it is in the host's memory
  const std::string& name = parameter.spec.name;
  const auto seed = XXH3_64bits_withSeed(name.data(), name.size(), static_cast<std::uint64_t>(round));
  value_ += XXH3_64bits_withSeed(gradient.const_data_ptr(), gradient.nbytes(), seed);  // modulo 2^64
}

void GradientChecksum::add_loss(double sum, double count) {
  const std::array<std::uint64_t, 2> bits{std::bit_cast<std::uint64_t>(sum), std::bit_cast<std::uint64_t>(count)};
  value_ += XXH3_64bits(bits.data(), sizeof bits);
}

void flip_bit(const at::Tensor& gradient) {
  // The upper byte but one of little-endian numbers: of a float32 bit 20, in its mantissa.
  const at::Tensor bytes = gradient.view(-1).narrow(0, 0, 1).view(at::kByte);
  const std::int64_t at = bytes.numel() - 2;
  bytes.narrow(0, at, 1).bitwise_xor_(0x10);
}

std::vector<supervise::Suspect> run_checked(const parallel::ParallelContext& context, int distance,
                                            const RunPass& run) {
  const plan::RankRoles roles(context.grid());  // without experts: samples() asks for none
  const int copies = distance > 0 ? context.samples().size() / distance : 1;
  std::vector<supervise::PartResult> results;
  const auto pass = [&](int copies_ahead, bool reduces) {
    const int places = copies_ahead * distance;
    const std::vector<std::uint64_t> checksums = gather_checksums(context.world(), run(places, reduces));
    const std::vector<int> parts = plan::ranks_further(roles, places);
    for (std::size_t rank = 0; rank < checksums.size(); ++rank)
      results.push_back({.rank = static_cast<int>(rank), .part = parts[rank], .checksum = checksums[rank]});
  };
  pass(1, false);
  pass(0, true);
  if (supervise::agree(results)) return {};
  pass(0, false);
  pass(1, false);
  if (copies > 2) pass(2, false);
  pass(0, true);
  return supervise::suspects_of(results);
}

nlohmann::ordered_json events_of(const std::vector<supervise::Suspect>& suspects,
                                 const parallel::ParallelContext& context) {
  using Json = nlohmann::ordered_json;
  const std::vector<std::string> machines = comm::gather_texts(context.world(), machine_of(context.device()));
  Json all = Json::array();
  for (const supervise::Suspect& suspect : suspects)
    all.push_back(Json{{"rank", suspect.rank},
                       {"name", plan::rank_name(context.grid(), suspect.rank)},
                       {"machine", machines.at(static_cast<std::size_t>(suspect.rank))},
                       {"wrong", suspect.wrong},
                       {"results", suspect.results},
                       {"persistent", suspect.persistent},
                       {"certain", suspect.certain},
                       {"checksum", hexadecimal(suspect.checksum)},
                       {"expected", suspect.expected ? Json(hexadecimal(*suspect.expected)) : Json()}});
  return all;
}

std::string text_of_suspects(const nlohmann::ordered_json& events) {
  std::string text;
  bool all_certain = true;
  for (const auto& of : events) {
    text += concat(text.empty() ? "" : "; ", of["name"].get<std::string>(), " on ", of["machine"].get<std::string>(),
                   ": ", of["wrong"].get<int>(), " of ", of["results"].get<int>(), " results differ");
    all_certain = all_certain && of["certain"].get<bool>();
  }
  return all_certain ? text : text + "; which of two that disagree is right is not known";
}

}  // namespace megatron::train
