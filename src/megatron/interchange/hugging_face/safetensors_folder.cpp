#include "megatron/interchange/hugging_face/safetensors_folder.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/families/json.h"
#include "megatron/interchange/stored_tensor.h"

namespace megatron::interchange {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 26;

/// Lets go of the pages that lie wholly in `bytes` of a mapped file, until they are read again: whoever reads a large
/// model once does not hold it.
void let_go(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& file) {
  const json index = families::parse_json_object(text, file);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty())
    throw ConfigError(
        rule_got_fix(concat(file, ": must name each tensor's file in \"weight_map\"."), "no such object"));
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : weight_map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      throw ConfigError(
          rule_got_fix(concat(file, ": the file of \"", printable(tensor), "\" must be a name in the same folder."),
                       printable(value.dump(-1, ' ', false, json::error_handler_t::replace))));
    files[tensor] = name;
  }
  return files;
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder, const std::string& single) : folder_(folder) {
  // As transformers does: an index beside the single file is left over from what was saved there before.
  if (std::filesystem::exists(folder_ / single)) {
    add_file(single);
    return;
  }
  const auto index_path = folder_ / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path))
    throw ConfigError(rule_got_fix(
        concat(folder_.string(), ": must hold ", single, ", or its shards and model.safetensors.index.json."),
        "neither", "convert other files (pytorch_model.bin) with transformers' save_pretrained"));
  const auto index = parse_index(read_file(index_path, kMaxIndexBytes), index_path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string& name : names) add_file(name);
  for (const auto& [tensor, file] : index) {
    const auto place = places_.find(tensor);
    if (place == places_.end() || files_[place->second.file].path().filename() != file)
      throw ConfigError(rule_got_fix(concat(printable((folder_ / file).string()), ": must hold \"", printable(tensor),
                                            "\", as ", index_path.filename().string(), " says."),
                                     "it does not", "fetch the folder again"));
  }
}

void SafetensorsFolder::add_file(const std::string& name) {
  const MappedFile& file = files_.emplace_back(folder_ / name);
  const checkpoint::ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) {
    const auto bytes = file.range(offset, into.size(), 1, "the header");
    std::copy(bytes.begin(), bytes.end(), into.begin());
  };
  for (auto& entry : checkpoint::read_safetensors(read, file.size(), file.path().string()).tensors) {
    const std::string tensor = entry.name;
    if (!places_.try_emplace(tensor, TensorLocation{files_.size() - 1, std::move(entry)}).second)
      throw ConfigError(rule_got_fix(concat(folder_.string(), ": each tensor must be in one file."),
                                     concat("\"", printable(tensor), "\" in ", printable(name), " and in another")));
  }
}

std::vector<std::string> SafetensorsFolder::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const std::vector<std::int64_t>* SafetensorsFolder::shape(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  return found == places_.end() ? nullptr : &found->second.entry.shape;
}

std::string SafetensorsFolder::dtype(const std::string& tensor) const { return places_.at(tensor).entry.dtype; }

void SafetensorsFolder::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  const TensorLocation& place = places_.at(tensor);
  if (!checkpoint::inside(box, place.entry.shape))
    throw std::logic_error(concat("a slice that lies outside of \"", tensor, "\""));
  const MappedFile& file = files_[place.file];
  const auto bytes = file.range(place.entry.begin, place.entry.end - place.entry.begin, 1, tensor);
  read_stored({.bytes = bytes, .dtype = place.entry.dtype, .shape = place.entry.shape, .strides = {}}, box, into,
              concat(file.path().string(), ": \"", printable(tensor), "\""));
  let_go(bytes);
}

}  // namespace megatron::interchange
