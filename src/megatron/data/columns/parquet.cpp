#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/data/columns/json_text.h"
#include "megatron/data/columns/parquet_values.h"
#include "megatron/data/columns/thrift.h"

namespace megatron::data {
namespace {

using Bytes = std::span<const std::byte>;
using Type = ThriftReader::Type;

constexpr std::uint64_t kMaxRowEntries = std::uint64_t{1} << 24;  // a few bytes can stand for billions of nulls

/// The head of a page.
struct PageHead {
  enum Kind : std::int64_t { Data = 0, Index = 1, Dictionary = 2, DataV2 = 3 };
  std::int64_t kind = -1, unpacked = -1, stored = -1, values = -1, encoding = -1;
  std::int64_t definition_encoding = 3, repetition_encoding = 3, definition_bytes = 0, repetition_bytes = 0;
  bool is_compressed = true;
};

bool take(ThriftReader& in, Type type, std::int64_t& into) {
  if (type != Type::I32 && type != Type::I64) return false;
  into = in.whole();
  return true;
}

PageHead read_page_head(ThriftReader& in) {
  PageHead head;
  in.read_struct([&](int field, Type type) {
    switch (field) {
      case 1:
        return take(in, type, head.kind);
      case 2:
        return take(in, type, head.unpacked);
      case 3:
        return take(in, type, head.stored);
      case 5:
      case 7:
      case 8:
        if (type != Type::Struct) return false;
        in.read_struct([&](int part, Type value) {
          if (part == 1) return take(in, value, head.values);
          if (field != 8) {
            if (part == 2) return take(in, value, head.encoding);
            if (part == 3 && field == 5) return take(in, value, head.definition_encoding);
            if (part == 4 && field == 5) return take(in, value, head.repetition_encoding);
            return false;
          }
          if (part == 4) return take(in, value, head.encoding);
          if (part == 5) return take(in, value, head.definition_bytes);
          if (part == 6) return take(in, value, head.repetition_bytes);
          if (part == 7) head.is_compressed = value != Type::False;
          return false;
        });
        return true;
      default:
        return false;
    }
  });
  return head;
}

/// The entries of one leaf in one row group, one after another: levels, and a value where they say that there is one.
class LeafReader {
 public:
  LeafReader(const ColumnFile& file, const ParquetLeaf& leaf, const ParquetChunk& chunk)
      : file_(file), leaf_(leaf), chunk_(chunk), left_(static_cast<std::uint64_t>(chunk.values)) {}

  bool at_end() const { return left_ == 0; }
  int repetition() {
    read();
    return repetition_;
  }
  int definition() {
    read();
    return definition_;
  }
  /// To be called before each row: it begins with the entry that is next.
  void begin_row() {
    if (at_end()) wrong("a column must have all rows of its group.", "fewer");
    if (repetition() != 0) wrong("a row must begin where the one before ends.", "an element of that");
    row_entries_ = 0;
  }
  void pass_over() {
    read();
    is_read_ = false;
    --left_;
    if (++row_entries_ > kMaxRowEntries) wrong(concat("a row may have at most ", kMaxRowEntries, " elements."), "more");
  }
  /// Appends the value of the entry, and moves to the next.
  void write(std::string& out, std::size_t row_begin);
  std::uint64_t bytes_read() const { return at_; }

 private:
  [[noreturn]] void wrong(const std::string& rule, const std::string& got) const {
    file_.damaged(chunk_.begin + page_at_, rule, got);
  }
  ParquetPage page() const { return {file_, chunk_.begin + page_at_}; }

  void read() {
    if (is_read_) return;
    if (left_ == 0) wrong("a column must have all of its values.", "fewer");
    while (page_left_ == 0) next_page();
    --page_left_;
    repetition_ = level(repetitions_, leaf_.max_repetition);
    definition_ = level(definitions_, leaf_.max_definition);
    if (definition_ == leaf_.max_definition) values_.next(page());
    is_read_ = true;
  }
  int level(HybridDecoder& levels, int most) {
    if (most == 0) return 0;
    const std::uint32_t value = levels.next(page());
    if (value > static_cast<std::uint32_t>(most)) wrong(concat("a level must be at most ", most, "."), concat(value));
    return static_cast<int>(value);
  }

  void next_page();
  void start_data(const PageHead& head, Bytes stored, std::uint64_t stored_at);
  Bytes unpacked(Bytes stored, std::uint64_t size, bool is_compressed, std::uint64_t at, std::vector<std::byte>& into) {
    if (chunk_.codec == Codec::None || !is_compressed) {
      if (stored.size() != size) wrong(concat("a page must have ", size, " bytes."), concat(stored.size()));
      return stored;
    }
    unpack(chunk_.codec, stored, size, file_, at, into);
    return into;
  }

  const ColumnFile& file_;
  const ParquetLeaf& leaf_;
  ParquetChunk chunk_;
  std::uint64_t at_ = 0, page_at_ = 0;  // of the chunk's bytes
  std::uint64_t left_, page_left_ = 0, row_entries_ = 0;
  std::vector<std::byte> page_bytes_, dictionary_bytes_;
  ParquetValues values_, dictionary_;
  HybridDecoder repetitions_, definitions_;
  bool has_dictionary_ = false, is_read_ = false;
  int repetition_ = 0, definition_ = 0;
};

void LeafReader::next_page() {
  page_at_ = at_;
  const std::uint64_t begin = chunk_.begin + at_;
  ThriftReader in(file_, begin, file_.part(begin, chunk_.size - at_, "a page"));
  const PageHead head = read_page_head(in);
  const std::uint64_t rest = chunk_.size - at_ - in.taken();
  if (head.stored < 0 || static_cast<std::uint64_t>(head.stored) > rest || head.unpacked < 0)
    wrong("a page must lie in its column.", concat(head.stored, " bytes of ", rest));
  const std::uint64_t stored_at = begin + in.taken();
  const Bytes stored = file_.part(stored_at, static_cast<std::uint64_t>(head.stored), "a page");
  at_ += in.taken() + static_cast<std::uint64_t>(head.stored);
  switch (head.kind) {
    case PageHead::Index:
      return;
    case PageHead::Dictionary: {
      const Bytes bytes =
          unpacked(stored, static_cast<std::uint64_t>(head.unpacked), true, stored_at, dictionary_bytes_);
      constexpr std::int64_t kPlain = 0, kOldPlain = 2;
      if (has_dictionary_ || head.values < 0 || (head.encoding != kPlain && head.encoding != kOldPlain))
        wrong("a column must have one dictionary, of plain values.", concat("encoding ", head.encoding));
      dictionary_.start(page(), leaf_, kPlain, bytes, nullptr);
      dictionary_.keep_all(page(), head.values);
      has_dictionary_ = true;
      return;
    }
    case PageHead::Data:
    case PageHead::DataV2:
      return start_data(head, stored, stored_at);
    default:
      wrong("a page must be of data or a dictionary.", concat("kind ", head.kind));
  }
}

void LeafReader::start_data(const PageHead& head, Bytes stored, std::uint64_t stored_at) {
  constexpr std::int64_t kRuns = 3;
  if (head.values < 0) wrong("a page must say how many values it has.", "nothing");
  if (head.definition_encoding != kRuns || head.repetition_encoding != kRuns)
    file_.not_read("levels must be encoded by run length.", "bits (before parquet 2)");
  Bytes levels = stored, rest;
  const auto bits = [](int most) { return static_cast<int>(std::bit_width(static_cast<unsigned>(most))); };
  const auto cut = [&](std::int64_t size) {
    if (size < 0 || static_cast<std::uint64_t>(size) > levels.size())
      wrong("levels must lie in their page.", concat(size, " bytes"));
    const Bytes taken = levels.first(static_cast<std::size_t>(size));
    levels = levels.subspan(static_cast<std::size_t>(size));
    return taken;
  };
  if (head.kind == PageHead::DataV2) {  // levels come before what is packed
    repetitions_ = HybridDecoder(cut(head.repetition_bytes), bits(leaf_.max_repetition));
    definitions_ = HybridDecoder(cut(head.definition_bytes), bits(leaf_.max_definition));
    const std::int64_t size = head.unpacked - head.repetition_bytes - head.definition_bytes;
    if (size < 0) wrong("a page must hold its levels.", concat(head.unpacked, " bytes"));
    const std::uint64_t at = stored_at + (stored.size() - levels.size());
    rest = unpacked(levels, static_cast<std::uint64_t>(size), head.is_compressed, at, page_bytes_);
  } else {
    levels = unpacked(stored, static_cast<std::uint64_t>(head.unpacked), true, stored_at, page_bytes_);
    const auto sized = [&](int most) {
      if (most == 0) return HybridDecoder();
      std::uint32_t size = 0;
      std::memcpy(&size, cut(sizeof size).data(), sizeof size);
      return HybridDecoder(cut(size), bits(most));
    };
    repetitions_ = sized(leaf_.max_repetition);
    definitions_ = sized(leaf_.max_definition);
    rest = levels;
  }
  values_.start(page(), leaf_, head.encoding, rest, has_dictionary_ ? &dictionary_ : nullptr);
  page_left_ = static_cast<std::uint64_t>(head.values);
}

void LeafReader::write(std::string& out, std::size_t row_begin) {
  read();
  const std::uint64_t bits = values_.bits();
  if (definition_ < leaf_.max_definition) {
    out += "null";
  } else {
    switch (leaf_.kind) {
      case ParquetKind::Bool:
        out += bits != 0 ? "true" : "false";
        break;
      case ParquetKind::Int32:
        if (leaf_.is_signed)
          append_json_number(std::int64_t{static_cast<std::int32_t>(bits)}, out);
        else
          append_json_number(std::uint64_t{static_cast<std::uint32_t>(bits)}, out);
        break;
      case ParquetKind::Int64:
        leaf_.is_signed ? append_json_number(static_cast<std::int64_t>(bits), out) : append_json_number(bits, out);
        break;
      case ParquetKind::Float:
        append_json_number(std::bit_cast<float>(static_cast<std::uint32_t>(bits)), out);
        break;
      case ParquetKind::Double:
        append_json_number(std::bit_cast<double>(bits), out);
        break;
      default:
        if (out.size() - row_begin + values_.text().size() > kMaxRowBytes)
          wrong(concat("a row may have at most ", kMaxRowBytes, " bytes."), "more");
        leaf_.kind == ParquetKind::String ? append_json_string(values_.text(), out)
                                          : append_json_bytes(values_.text(), out);
    }
  }
  pass_over();
}

class ParquetRows : public RowSource {
 public:
  explicit ParquetRows(ColumnFile file) : file_(std::move(file)), footer_(read_parquet_footer(file_)) {}

  bool next(std::string& lines) override {
    const std::size_t before = lines.size();
    while (lines.size() - before < kRowsBytes && begin_group()) {
      row_begin_ = lines.size();
      for (LeafReader& leaf : leaves_) leaf.begin_row();
      write_object(footer_.root, lines);
      lines += '\n';
      --rows_left_;
    }
    return lines.size() > before;
  }

  std::int64_t position() const override {
    std::uint64_t bytes = bytes_before_;
    for (const LeafReader& leaf : leaves_) bytes += leaf.bytes_read();
    return static_cast<std::int64_t>(bytes);
  }

 private:
  /// Whether there is another row; opens the row group that has it.
  bool begin_group() {
    while (rows_left_ == 0) {
      for (LeafReader& leaf : leaves_)
        if (!leaf.at_end()) file_.damaged(0, "a column must have the rows of its group alone.", "more values");
      if (group_ == footer_.groups.size()) return false;
      bytes_before_ = static_cast<std::uint64_t>(position());
      leaves_.clear();
      leaves_.reserve(footer_.leaves.size());
      const ParquetFooter::RowGroup& group = footer_.groups[group_++];
      for (std::size_t i = 0; i < footer_.leaves.size(); ++i)
        leaves_.emplace_back(file_, footer_.leaves[i], group.chunks[i]);
      rows_left_ = group.rows;
    }
    return true;
  }

  void pass_over(const ParquetNode& node) {
    for (std::size_t i = node.first_leaf; i < node.last_leaf; ++i) leaves_[i].pass_over();
  }

  void write(const ParquetNode& node, std::string& out) {
    if (node.is_repeated) return write_elements(node, false, out);
    if (node.is_optional && leaves_[node.first_leaf].definition() < node.definition) {
      out += "null";
      return pass_over(node);
    }
    write_content(node, out);
  }

  void write_content(const ParquetNode& node, std::string& out) {
    if (node.kind != ParquetKind::Group) return leaves_[node.first_leaf].write(out, row_begin_);
    if (node.is_list) return write_elements(node.children[0], true, out);
    write_object(node, out);
  }

  void write_object(const ParquetNode& node, std::string& out) {
    const char* before = "{";
    for (const ParquetNode& child : node.children) {
      out += before;
      append_json_string(child.name, out);
      out += ':';
      write(child, out);
      before = ",";
    }
    out += '}';
  }

  /// `in_list`: the repeated group of a list may be there only to hold its one child.
  void write_elements(const ParquetNode& repeated, bool in_list, std::string& out) {
    LeafReader& leaf = leaves_[repeated.first_leaf];
    if (leaf.definition() < repeated.definition) {
      out += "[]";
      return pass_over(repeated);
    }
    const bool holds = in_list && repeated.kind == ParquetKind::Group && repeated.is_wrapper &&
                       repeated.name != "array" && !repeated.name.ends_with("_tuple");
    const char* before = "[";
    do {
      out += before;
      holds ? write(repeated.children[0], out) : write_content(repeated, out);
      before = ",";
    } while (!leaf.at_end() && leaf.repetition() == repeated.repetition);
    out += ']';
  }

  ColumnFile file_;
  ParquetFooter footer_;
  std::size_t group_ = 0;
  std::int64_t rows_left_ = 0;
  std::uint64_t bytes_before_ = 0;
  std::vector<LeafReader> leaves_;
  std::size_t row_begin_ = 0;
};

}  // namespace

std::unique_ptr<RowSource> open_parquet(ColumnFile file) { return std::make_unique<ParquetRows>(std::move(file)); }

}  // namespace megatron::data
