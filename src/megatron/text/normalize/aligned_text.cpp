#include "megatron/text/normalize/aligned_text.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {

AlignedText::AlignedText(std::string_view original, std::size_t begin, bool aligned, std::uint32_t stand_in_base,
                         std::size_t& replaced)
    : origin_(begin), most_(64 * original.size() + 65536), aligned_(aligned) {
  if (!aligned_ && valid_utf8(original)) {
    bytes_ = original;
    return;
  }
  bytes_.reserve(original.size() + original.size() / 8);
  if (aligned_) spans_.reserve(original.size());
  const char* const end = original.data() + original.size();
  for (const char* p = original.data(); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    const auto at = begin + static_cast<std::size_t>(p - original.data());
    const int length = std::max(c.length, 1);
    if (c.length > 0) {
      bytes_.append(p, static_cast<std::size_t>(c.length));
    } else {
      append_utf8(bytes_, stand_in_base == 0 ? 0xFFFD : stand_in_base + static_cast<unsigned char>(*p));
      ++replaced;
    }
    if (aligned_) spans_.resize(bytes_.size(), {at, at + static_cast<std::size_t>(length)});
    p += length;
  }
}

ByteSpan AlignedText::origin_of(std::size_t begin, std::size_t end) const {
  if (begin >= end) {
    const std::size_t at = begin < spans_.size() ? spans_[begin].begin : spans_.empty() ? origin_ : spans_.back().end;
    return {at, at};
  }
  return {spans_[begin].begin, spans_[end - 1].end};
}

AlignedText AlignedText::part(std::size_t begin, std::size_t end) const {
  AlignedText text = like(*this);
  text.append_kept(*this, begin, end);
  if (begin > 0) text.origin_ = aligned_ ? spans_[begin].begin : origin_ + begin;
  return text;
}

AlignedText AlignedText::like(const AlignedText& other) {
  AlignedText text;
  text.origin_ = other.origin_;
  text.most_ = other.most_;
  text.aligned_ = other.aligned_;
  return text;
}

void AlignedText::reserve(std::size_t bytes) {
  bytes_.reserve(bytes);
  if (aligned_) spans_.reserve(bytes);
}

void AlignedText::append_kept(const AlignedText& from, std::size_t begin, std::size_t end) {
  bytes_.append(from.bytes_, begin, end - begin);
  if (aligned_)
    spans_.insert(spans_.end(), from.spans_.begin() + static_cast<std::ptrdiff_t>(begin),
                  from.spans_.begin() + static_cast<std::ptrdiff_t>(end));
}

void AlignedText::refuse(std::size_t size) const {
  throw ConfigError(
      rule_got_fix("tokenizer: normalizers must not make a text longer than 64 times what it was and 64 KiB",
                   concat(size, " bytes, and at most ", most_), "another tokenizer, or shorter documents"));
}

void AlignedText::append_as(const AlignedText& from, std::size_t at, std::string_view bytes) {
  check(bytes_.size() + bytes.size());
  bytes_ += bytes;
  if (aligned_) spans_.resize(bytes_.size(), at < from.spans_.size() ? from.spans_[at] : ByteSpan{origin_, origin_});
}

void AlignedText::append_over(const AlignedText& from, std::size_t begin, std::size_t end, std::string_view bytes) {
  check(bytes_.size() + bytes.size());
  bytes_ += bytes;
  if (aligned_) spans_.resize(bytes_.size(), from.origin_of(begin, end));
}

void AlignedText::shrink(std::size_t size) {
  bytes_.resize(size);
  if (aligned_) spans_.resize(size);
}

void AlignedText::transform(std::span<const Change> changes, std::size_t skipped) {
  AlignedText result = like(*this);
  result.reserve(bytes_.size() + bytes_.size() / 8);
  if (!aligned_ && skipped == 0) {
    for (const Change& change : changes) append_utf8(result.bytes_, change.code_point);
    check(result.bytes_.size());
    *this = std::move(result);
    return;
  }
  std::size_t at = 0;  // of the next old character
  const auto next = [&] {
    const DecodedChar c = decode_utf8(bytes_.data() + at, bytes_.data() + bytes_.size());
    at += static_cast<std::size_t>(std::max(c.length, 1));
  };
  for (; skipped > 0 && at < bytes_.size(); --skipped) next();
  std::string character;
  for (const Change& change : changes) {
    const std::size_t source = change.change > 0 ? at - 1 : at;  // before the first: past the end
    character.clear();
    append_utf8(character, change.code_point);
    result.append_as(*this, source, character);
    for (int taken = change.change; taken <= 0 && at < bytes_.size(); ++taken) next();
  }
  *this = std::move(result);
}

}  // namespace megatron::text
