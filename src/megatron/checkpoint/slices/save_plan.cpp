#include "megatron/checkpoint/slices/save_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"

namespace megatron::checkpoint {
namespace {

using nlohmann::json;

struct Holder {
  std::size_t rank, index;
};

std::uint64_t bytes_of(const HeldSlice& slice) {
  return static_cast<std::uint64_t>(slice.box.elements()) * dtype_bytes(slice.dtype);
}

std::string stored_name(const HeldSlice& slice) {
  if (slice.box.shape == slice.global_shape) return slice.name;
  std::string name = slice.name + "@";
  for (std::size_t d = 0; d < slice.box.offset.size(); ++d) name += concat(d == 0 ? "" : ",", slice.box.offset[d]);
  return name;
}

}  // namespace

std::string to_text(const std::vector<HeldSlice>& slices) {
  json list = json::array();
  for (const HeldSlice& slice : slices)
    list.push_back({slice.name, slice.dtype, slice.global_shape, slice.box.offset, slice.box.shape});
  return list.dump();
}

std::vector<HeldSlice> held_slices(const std::string& text) {
  std::vector<HeldSlice> slices;
  for (const json& slice : parse_json(text)) slices.push_back({slice[0], slice[1], slice[2], {slice[3], slice[4]}});
  return slices;
}

std::vector<std::vector<std::size_t>> plan_writes(const std::vector<std::vector<HeldSlice>>& held) {
  std::map<std::pair<std::string, Box>, std::vector<Holder>> holders;
  std::map<std::string, const HeldSlice*> tensors;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (std::size_t index = 0; index < held[rank].size(); ++index) {
      const HeldSlice& slice = held[rank][index];
      const HeldSlice& first = *tensors.emplace(slice.name, &slice).first->second;
      if (first.dtype != slice.dtype || first.global_shape != slice.global_shape)
        throw std::logic_error(
            concat("rank ", rank, " holds \"", slice.name, "\" with another dtype or shape than other ranks"));
      if (slice.box.elements() > 0) holders[{slice.name, slice.box}].push_back({rank, index});
    }
  }
  std::vector<const std::vector<Holder>*> largest_first;
  for (const auto& [slice, ranks] : holders) largest_first.push_back(&ranks);
  const auto bytes = [&](const std::vector<Holder>* ranks) {
    return bytes_of(held[ranks->front().rank][ranks->front().index]);
  };
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](auto* a, auto* b) { return bytes(a) > bytes(b); });

  std::vector<std::vector<std::size_t>> writes(held.size());
  std::vector<std::uint64_t> load(held.size(), 0);
  for (const std::vector<Holder>* ranks : largest_first) {
    const Holder& writer = *std::min_element(
        ranks->begin(), ranks->end(), [&](const Holder& a, const Holder& b) { return load[a.rank] < load[b.rank]; });
    writes[writer.rank].push_back(writer.index);
    load[writer.rank] += bytes(ranks);
  }
  for (std::vector<std::size_t>& indices : writes) std::sort(indices.begin(), indices.end());
  return writes;
}

std::vector<SafetensorsEntry> entries_of(const std::vector<HeldSlice>& slices, const std::vector<std::size_t>& writes) {
  std::vector<SafetensorsEntry> entries;
  for (const std::size_t index : writes)
    entries.push_back(
        {.name = stored_name(slices[index]), .dtype = slices[index].dtype, .shape = slices[index].box.shape});
  return entries;
}

std::string data_file_name(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank_" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

std::string to_text(const Written& written) {
  return json({written.file.name, written.file.size, written.file.block_hashes, written.begins}).dump();
}

Written written_slices(const std::string& text) {
  const json value = parse_json(text);
  return {.file = {.name = value[0], .size = value[1], .block_hashes = value[2]}, .begins = value[3]};
}

Manifest join_manifest(const std::vector<std::vector<HeldSlice>>& held,
                       const std::vector<std::vector<std::size_t>>& writes, const std::vector<Written>& written) {
  Manifest manifest;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const HeldSlice& slice : held[rank]) {  // also those of which no rank holds an element: their shape is known
      TensorRecord& tensor = manifest.tensors[slice.name];
      tensor.dtype = slice.dtype;
      tensor.shape = slice.global_shape;
    }
    if (written[rank].file.size == 0) continue;
    for (std::size_t k = 0; k < writes[rank].size(); ++k) {
      const HeldSlice& slice = held[rank][writes[rank][k]];
      manifest.tensors[slice.name].slices.push_back({slice.box, manifest.files.size(), written[rank].begins[k]});
    }
    manifest.files.push_back(written[rank].file);
  }
  return manifest;
}

}  // namespace megatron::checkpoint
