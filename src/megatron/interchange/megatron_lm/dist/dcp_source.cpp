#include "megatron/interchange/megatron_lm/dist/dcp_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"

namespace megatron::interchange {
namespace {

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{1} << 28;

DcpMetadata read_index(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.size() > kMaxMetadataBytes)
    throw ConfigError(rule_got_fix(concat(path.string(), ": must have at most ", kMaxMetadataBytes, " bytes."),
                                   concat(file.size(), " bytes")));
  return read_dcp_metadata(file.bytes(), path.string());
}

}  // namespace

DcpFolder::DcpFolder(std::filesystem::path folder)
    : folder_(std::move(folder)), metadata_(read_index(folder_ / ".metadata")) {}

const DcpTensor* DcpFolder::find(const std::string& tensor) const {
  const auto found = metadata_.tensors.find(tensor);
  return found == metadata_.tensors.end() ? nullptr : &found->second;
}

TorchFile DcpFolder::open(const DcpPlace& place) const {
  std::shared_ptr<const MappedFile>& file = files_[place.file];
  if (file == nullptr) file = std::make_shared<const MappedFile>(folder_ / place.file);
  return {file, place.offset, place.size};
}

const StoredTensor& DcpFolder::stored(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const std::pair key(chunk.place.file, chunk.place.offset);
  auto found = archives_.find(key);
  if (found == archives_.end()) {
    const TorchFile file = open(chunk.place);
    if (file.root().kind != PickleNode::Kind::Tensor)
      throw ConfigError(rule_got_fix(concat(file.name(), ": must be a saved tensor."), "something else"));
    found = archives_.emplace(key, file.tensor(file.root(), "tensor")).first;
  }
  if (found->second.shape != chunk.box.shape || found->second.dtype != tensor.dtype)
    throw ConfigError(rule_got_fix(concat(place_text(chunk.place), ": must be the tensor that .metadata tells of."),
                                   "another shape or dtype", "copy the whole folder again"));
  return found->second;
}

std::string DcpFolder::place_text(const DcpPlace& place) const {
  return concat((folder_ / place.file).string(), " at byte ", place.offset);
}

void DcpFolder::read(const DcpTensor& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  for (const DcpChunk& chunk : tensor.chunks) {
    if (!checkpoint::overlap(chunk.box, box)) continue;
    at::Tensor part = into;
    checkpoint::Box source;
    for (std::size_t d = 0; d < box.shape.size(); ++d) {
      const std::int64_t begin = std::max(chunk.box.offset[d], box.offset[d]);
      const std::int64_t end = std::min(chunk.box.offset[d] + chunk.box.shape[d], box.offset[d] + box.shape[d]);
      part = part.narrow(static_cast<std::int64_t>(d), begin - box.offset[d], end - begin);
      source.offset.push_back(begin - chunk.box.offset[d]);
      source.shape.push_back(end - begin);
    }
    const StoredTensor& found = stored(tensor, chunk);
    read_stored(found, source, part, place_text(chunk.place));
  }
}

std::vector<std::string> DcpSource::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_)
    if (!name.starts_with("optimizer.")) names.push_back(name);
  return names;
}

const std::vector<std::int64_t>* DcpSource::shape(const std::string& tensor) const {
  const auto found = places_.find(tensor);
  return found == places_.end() ? nullptr : &found->second.shape;
}

void DcpSource::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  const TensorLocation& place = places_.at(tensor);
  if (!checkpoint::inside(box, place.shape))
    throw std::logic_error(concat("a slice that lies outside of \"", printable(tensor), "\""));
  if (!place.flat.empty()) {
    for (const FlatSlice& slice : place.flat) read_flat(slice, box, into);
    return;
  }
  if (place.zeros) {
    into.zero_();
    return;
  }
  checkpoint::Box all = box;
  all.offset.insert(all.offset.begin(), place.index.begin(), place.index.end());
  all.shape.insert(all.shape.begin(), place.index.size(), 1);
  at::Tensor part = into;
  for (std::size_t d = 0; d < place.index.size(); ++d) part = part.unsqueeze(0);
  folder_->read(*place.tensor, all, part);
  if (place.factor != 1) part.mul_(place.factor);
}

void DcpSource::read_flat(const FlatSlice& slice, const checkpoint::Box& box, const at::Tensor& into) const {
  const plan::ParameterSpec& spec = slice.spec;
  const std::int64_t dim = std::max(spec.split_dim, 0);
  const auto d = static_cast<std::size_t>(dim);
  std::vector<plan::ShardSlice> pieces = spec.pieces;
  if (pieces.empty()) pieces = {{.offset = 0, .length = spec.shape[d]}};
  at::Tensor local;
  std::int64_t first = 0;  // of the piece, in the slice
  for (const plan::ShardSlice& piece : pieces) {
    const std::int64_t begin = std::max(piece.offset, box.offset[d]);
    const std::int64_t end = std::min(piece.offset + piece.length, box.offset[d] + box.shape[d]);
    if (begin < end) {
      if (!local.defined()) {
        local = at::empty({spec.local_size()}, scalar_type(slice.tensor->dtype, folder_->name()));
        folder_->read(*slice.tensor, {{slice.begin}, {spec.local_size()}}, local);
        local = local.view(spec.local_shape());
        for (std::size_t other = 0; other < box.shape.size(); ++other)
          if (other != d) local = local.narrow(static_cast<std::int64_t>(other), box.offset[other], box.shape[other]);
      }
      into.narrow(dim, begin - box.offset[d], end - begin)
          .copy_(local.narrow(dim, first + begin - piece.offset, end - begin));
    }
    first += piece.length;
  }
}

}  // namespace megatron::interchange
