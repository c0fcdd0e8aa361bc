#include "megatron/train/resume/agreement.h"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/version.h"
#include "megatron/checkpoint/files/folder.h"
#include "megatron/config/value.h"
#include "megatron/data/run_blends.h"
#include "megatron/interchange/weights.h"
#include "megatron/kernels/runtime.h"
#include "megatron/schedule/text.h"
#include "megatron/text/tokenizer.h"
#include "megatron/train/inputs.h"
#include "megatron/train/resume/input_digests.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

/// The fact `name` with what `look` returns, or what it throws.
template <class Look>
comm::Fact fact_of(const std::string& name, const Look& look) {
  try {
    return {name, look()};
  } catch (const std::exception& error) {
    const comm::Problem problem = comm::problem_of(error);
    return {name, problem.text, /*is_unread=*/true, problem.is_config};
  }
}

/// What `look` returns, or what it throws.
template <class Look>
std::string text_of(const Look& look) {
  return fact_of("", look).value;
}

/// What follows the colon of the first line of `file` that begins with `key`; "" where there is none.
std::string value_in(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key))
      if (const std::size_t colon = line.find(':'); colon != std::string::npos)
        return line.substr(std::min(line.size(), line.find_first_not_of(" \t", colon + 1)));
  return "";
}

/// What decides the last bits of a product on this rank: libraries choose their code by the processor or the GPU, and
/// share it out by threads.
std::string arithmetic() {
  std::set<std::string> gpus;
  std::error_code none;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", none))
    gpus.insert(value_in(gpu.path() / "information", "Model"));
  std::string text = concat(value_in("/proc/cpuinfo", "model name"), ", ", kernels::instruction_set(), ", ",
                            at::get_num_threads(), " threads");
  for (const std::string& gpu : gpus) text += ", " + gpu;
  return text;
}

std::string joined(const data::Blend& blend) {
  std::string text;
  for (std::size_t i = 0; i < blend.prefixes.size(); ++i)
    text += concat(text.empty() ? "" : " ", blend.weights ? concat(blend.weights->at(i), " ") : "", blend.prefixes[i]);
  return text;
}

void add_data(const config::DataConfig& config, bool conversations, comm::Facts& facts) {
  const data::RunBlends blends = data::read_blends(config);
  constexpr const char* kParts[] = {"training data", "validation data", "test data"};
  std::vector<std::string> prefixes;
  for (std::size_t part = 0; part < blends.parts.size(); ++part) {
    if (!blends.parts[part]) continue;
    facts.push_back({kParts[part], joined(*blends.parts[part])});
    for (const std::string& prefix : blends.parts[part]->prefixes)
      if (std::ranges::find(prefixes, prefix) == prefixes.end()) prefixes.push_back(prefix);
  }
  for (const std::string& prefix : prefixes) {
    if (conversations) {
      facts.push_back(file_fact(prefix));
    } else {
      facts.push_back(file_fact(prefix + ".idx"));
      facts.push_back(fact_of("file " + prefix + ".bin", [&] { return sampled_digest(prefix + ".bin"); }));
    }
  }
}

/// XXH3 of what looks at many gigabytes for a moment: of a small file all bytes, of a large one the first and the last
/// megabyte and 4 KiB of each between, so that every large tensor has a share.
std::uint64_t sampled_hash(std::span<const std::byte> bytes) {
  constexpr std::size_t kWhole = 64 << 20, kStride = 1 << 20, kSample = 4 << 10;
  if (bytes.size() <= kWhole) return XXH3_64bits(bytes.data(), bytes.size());
  std::uint64_t hash = XXH3_64bits(bytes.data(), kStride);
  for (std::size_t at = kStride; at + kStride < bytes.size(); at += kStride)
    hash = XXH3_64bits_withSeed(bytes.data() + at, kSample, hash);
  return XXH3_64bits_withSeed(bytes.data() + bytes.size() - kStride, kStride, hash);
}

std::string digest_of_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  const auto hidden = [](const fs::path& path) { return path.filename().string().starts_with('.'); };
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && hidden(entry->path())) entry.disable_recursion_pending();
    if (entry->is_regular_file() && !hidden(entry->path())) files.push_back(entry->path());
  }
  std::ranges::sort(files);
  std::uint64_t bytes = 0, hash = 0;
  for (const fs::path& path : files) {
    const MappedFile file(path);
    const std::string name = path.lexically_relative(folder).generic_string();
    hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
    hash ^= sampled_hash(file.bytes());
    bytes += file.bytes().size();
  }
  return concat(files.size(), " files of ", bytes, " bytes, XXH3 ", std::hex, hash);
}

/// The checkpoint, or the folder of weights, that the run would begin with as this rank sees it; empty: none.
std::string start_of(const config::RunConfig& config) {
  const auto folder = checkpoint_to_load(config);
  if (!folder) return {};
  const bool foreign =
      resumes_foreign_run(config) || (takes_weights_alone(config) && interchange::is_foreign(folder->string()));
  return foreign ? folder->string() : checkpoint::candidates(*folder).front().string();
}

}  // namespace

comm::Facts option_facts(const config::Fields& fields) {
  comm::Facts facts;
  for (const config::Field& field : fields.fields)
    if (!field.meaning.ranks_may_differ) facts.push_back({field.path, config::plain_value(field.value)});
  return facts;
}

comm::Facts recipe_facts(const plan::ResolvedRun& run) {
  comm::Facts facts = {{"version of megatron", program_version()}, {"version of libtorch", TORCH_VERSION}};
  config::RunConfig config = run.config;
  config.parallel.world_size = run.grid.world_size();  // as given, it may be a launcher's or follow from the others
  config.parallel.dp = run.grid.sample_shares();
  comm::Facts options = option_facts(config::fields_of(config));
  facts.insert(facts.end(), std::make_move_iterator(options.begin()), std::make_move_iterator(options.end()));
  if (run.schedule_file) {
    const std::string text = schedule::to_text(*run.schedule_file);
    facts.push_back({"file " + config.parallel.pp_schedule, digest_of(std::as_bytes(std::span(text)))});
  }
  return facts;
}

comm::Facts input_facts(const config::RunConfig& config) {
  comm::Facts facts;
  const config::DataConfig& data = config.data;
  if (!data.tokenizer.empty())
    facts.push_back(fact_of("tokenizer " + data.tokenizer, [&] {
      return text::Tokenizer::load(data.tokenizer, data.tokenizer_type, data.vocab_extra_ids).fingerprint();
    }));
  const comm::Fact opened = fact_of("data", [&] {
    add_data(data, data.sft || config.dpo.beta > 0, facts);
    return std::string();
  });
  if (opened.is_unread) facts.push_back(opened);
  return facts;
}

std::string digest_of(std::span<const std::byte> bytes) {
  return concat(bytes.size(), " bytes, XXH3 ", std::hex, XXH3_64bits(bytes.data(), bytes.size()));
}

comm::Fact file_fact(const fs::path& path) {
  return fact_of("file " + path.string(), [&] {
    if (!fs::exists(path)) return std::string("no such file");
    return fs::is_directory(path) ? digest_of_folder(path) : digest_of(MappedFile(path).bytes());
  });
}

comm::Fact model_fact(const std::string& name, const fs::path& folder) {
  return fact_of(name, [&] {
    if (fs::is_regular_file(folder)) return concat("a file of ", fs::file_size(folder), " bytes");
    if (!fs::is_directory(folder)) return std::string("no such folder");
    if (!checkpoint::has_checkpoint(folder)) return digest_of_folder(folder) + ", no manifest";
    const fs::path found = checkpoint::find_checkpoint(folder);
    const std::string manifest = checkpoint::fingerprint(found);
    const std::string iteration = text_of([&] { return concat(checkpoint::read_manifest(found).iteration); });
    return concat("iteration ", iteration, ", ", manifest);
  });
}

void require_equal_runs(const plan::ResolvedRun& run, const comm::Group& world) {
  if (world.size() == 1) return;
  comm::require_agreement(world, recipe_facts(run));
  comm::require_agreement(world, input_facts(run.config));
  for (const auto& [option, folder] :
       {std::pair{"lora.base ", run.config.lora.base}, {"distill.teacher ", run.config.distill.teacher}})
    if (!folder.empty()) comm::require_agreement(world, {model_fact(option + folder, folder)});
  if (run.config.guard.rerun_interval > 0)  // the same bits come of the same instructions
    comm::require_agreement(world, {fact_of("what computes, for guard.rerun_interval", arithmetic)});
  // Rank 0 says where the run begins: what `latest` says elsewhere may be older for a while, on a shared file system.
  const comm::Fact own = fact_of("checkpoint", [&] { return start_of(run.config); });
  const std::string start = comm::gather_texts(world, own.value)[0];
  comm::require_agreement(
      world, {start.empty() || (own.is_unread && own.value == start) ? own : model_fact("checkpoint " + start, start)});
}

}  // namespace megatron::train
