#include "megatron/data/columns/parquet_footer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/data/columns/thrift.h"

namespace megatron::data {
namespace {

using Type = ThriftReader::Type;

constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::uint64_t kMaxFooter = std::uint64_t{1} << 30;

/// An element of the schema as the footer has it: a tree in the order in which its nodes are met.
struct Element {
  int physical = -1, repetition = 0, converted = -1, logical = 0;
  bool is_signed = true;
  std::int64_t children = 0;
  std::string name;
};

/// A chunk as the footer has it.
struct StoredChunk {
  std::int64_t codec = 0, values = -1, size = -1, data_page = -1, dictionary_page = -1;
  bool elsewhere = false, encrypted = false;
};

struct StoredGroup {
  std::int64_t rows = -1;
  std::vector<StoredChunk> chunks;
};

class FooterReader {
 public:
  FooterReader(const ColumnFile& file, std::uint64_t offset, std::span<const std::byte> part)
      : file_(file), offset_(offset), in_(file, offset, part) {}

  ParquetFooter read() {
    in_.read_struct([&](int field, Type type) {
      if (field == 2 && type == Type::List) {
        in_.read_list([&](Type each) {
          in_.need(each, Type::Struct);
          elements_.push_back(element());
        });
        return true;
      }
      if (field == 4 && type == Type::List) {
        in_.read_list([&](Type each) {
          in_.need(each, Type::Struct);
          groups_.push_back(group());
        });
        return true;
      }
      if (field == 8) file_.not_read("the file must not be encrypted.", "an encrypted one");
      return false;
    });
    ParquetFooter footer;
    if (elements_.empty()) wrong("a footer must have a schema.", "none");
    auto root = node(0, 0, 0, footer.leaves);
    if (!root || root->kind != ParquetKind::Group)
      wrong("a schema must begin with the group of its columns.", "a column");
    footer.root = std::move(*root);
    if (next_ != elements_.size()) wrong("the schema must be one tree.", "more nodes");
    if (footer.leaves.empty()) file_.not_read("there must be a column of text or numbers.", "none");
    for (const StoredGroup& stored : groups_) footer.groups.push_back(placed(stored, footer.leaves));
    return footer;
  }

 private:
  [[noreturn]] void wrong(const std::string& rule, const std::string& got) const { file_.damaged(offset_, rule, got); }
  /// Takes a whole number, where the value is one.
  template <class T>
  bool take(Type type, T& into) {
    if (type != Type::I32 && type != Type::I64 && type != Type::I16) return false;
    const std::int64_t value = in_.whole();
    if (!std::in_range<T>(value)) wrong("numbers of a footer must have their type's size.", concat(value));
    into = static_cast<T>(value);
    return true;
  }

  Element element() {
    Element result;
    in_.read_struct([&](int field, Type type) {
      switch (field) {
        case 1:
          return take(type, result.physical);
        case 3:
          return take(type, result.repetition);
        case 4:
          if (type != Type::Binary) return false;
          result.name = in_.binary();
          return true;
        case 5:
          return take(type, result.children);
        case 6:
          return take(type, result.converted);
        case 10:
          if (type != Type::Struct) return false;
          in_.read_struct([&](int logical, Type inner) {
            result.logical = logical;
            constexpr int kInteger = 10;
            if (logical != kInteger || inner != Type::Struct) return false;
            in_.read_struct([&](int part, Type value) {
              if (part == 2) result.is_signed = value == Type::True;
              return false;
            });
            return true;
          });
          return true;
        default:
          return false;
      }
    });
    return result;
  }

  StoredGroup group() {
    StoredGroup result;
    in_.read_struct([&](int field, Type type) {
      if (field == 3) return take(type, result.rows);
      if (field != 1 || type != Type::List) return false;
      in_.read_list([&](Type each) {
        in_.need(each, Type::Struct);
        result.chunks.push_back(chunk());
      });
      return true;
    });
    return result;
  }

  StoredChunk chunk() {
    StoredChunk result;
    in_.read_struct([&](int field, Type type) {
      result.elsewhere = result.elsewhere || (field == 1 && type == Type::Binary);
      result.encrypted = result.encrypted || field == 8;
      if (field != 3 || type != Type::Struct) return false;
      in_.read_struct([&](int part, Type value) {
        switch (part) {
          case 4:
            return take(value, result.codec);
          case 5:
            return take(value, result.values);
          case 7:
            return take(value, result.size);
          case 9:
            return take(value, result.data_page);
          case 11:
            return take(value, result.dictionary_page);
          default:
            return false;
        }
      });
      return true;
    });
    return result;
  }

  /// How a leaf is shown; nothing where it is not.
  static std::optional<ParquetKind> kind_of(const Element& element) {
    // Of converted types: 0 UTF8, 4 ENUM, 11 to 18 whole numbers, 19 JSON; of logical ones: 1 STRING, 4 ENUM,
    // 10 INTEGER, 12 JSON. Other numbers are times or decimals.
    const bool plain = element.logical == 0 && element.converted < 0;
    const bool whole = plain || element.logical == 10 || (element.converted >= 11 && element.converted <= 18);
    const bool text = element.logical == 1 || element.logical == 4 || element.logical == 12 || element.converted == 0 ||
                      element.converted == 4 || element.converted == 19;
    switch (element.physical) {
      case Physical::Boolean:
        return ParquetKind::Bool;
      case Physical::Int32:
        return whole ? std::optional(ParquetKind::Int32) : std::nullopt;
      case Physical::Int64:
        return whole ? std::optional(ParquetKind::Int64) : std::nullopt;
      case Physical::Float:
        return ParquetKind::Float;
      case Physical::Double:
        return ParquetKind::Double;
      case Physical::ByteArray:
        return text ? std::optional(ParquetKind::String) : plain ? std::optional(ParquetKind::Bytes) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  /// The node that the next element begins, at these levels, with what is below it; nothing where none of it is shown.
  std::optional<ParquetNode> node(int definition, int repetition, int nesting, std::vector<ParquetLeaf>& leaves) {
    if (next_ >= elements_.size()) wrong("the schema must be one tree.", "too few nodes");
    if (nesting > kMaxNesting || next_ > kMaxColumns)
      file_.not_read(concat("there may be at most ", kMaxColumns, " columns, and ", kMaxNesting, " types in types."),
                     "more");
    const Element& element = elements_[next_++];
    ParquetNode result{.name = element.name};
    if (nesting > 0) {
      if (element.repetition < 0 || element.repetition > 2)
        wrong("a column must be required, optional or repeated.", "none");
      result.is_optional = element.repetition == 1;
      result.is_repeated = element.repetition == 2;
    }
    definition += result.is_optional || result.is_repeated ? 1 : 0;
    repetition += result.is_repeated ? 1 : 0;
    result.definition = definition;
    result.repetition = repetition;
    result.first_leaf = leaves.size();
    if (element.physical < 0 || element.children > 0) {
      for (std::int64_t i = 0; i < element.children; ++i)
        if (auto child = node(definition, repetition, nesting + 1, leaves))
          result.children.push_back(std::move(*child));
      const bool says =
          element.logical == 2 || element.logical == 3 || (element.converted >= 1 && element.converted <= 3);
      result.is_list = says && element.children == 1 && result.children.size() == 1 && result.children[0].is_repeated;
      result.is_wrapper = element.children == 1;
      result.last_leaf = leaves.size();
      if (result.children.empty() && nesting > 0) return std::nullopt;
      return result;
    }
    const auto kind = kind_of(element);
    const std::size_t column = column_++;
    if (!kind) return std::nullopt;
    result.kind = *kind;
    result.is_signed = element.is_signed && !(element.converted >= 11 && element.converted <= 14);
    leaves.push_back({column, *kind, result.is_signed, element.physical, definition, repetition});
    result.last_leaf = leaves.size();
    return result;
  }

  ParquetFooter::RowGroup placed(const StoredGroup& stored, const std::vector<ParquetLeaf>& leaves) const {
    if (stored.rows < 0 || stored.chunks.size() != column_)
      wrong("a row group must have rows, and a chunk for each column.", concat(stored.chunks.size(), " chunks"));
    ParquetFooter::RowGroup result{.rows = stored.rows, .chunks = {}};
    for (const ParquetLeaf& leaf : leaves) {
      const StoredChunk& chunk = stored.chunks[leaf.column];
      if (chunk.elsewhere) file_.not_read("columns must be in the file itself.", "one in another file");
      if (chunk.encrypted) file_.not_read("the file must not be encrypted.", "an encrypted column");
      // Some writers say 0 where there is no dictionary.
      const std::int64_t begin =
          chunk.dictionary_page > 0 ? std::min(chunk.dictionary_page, chunk.data_page) : chunk.data_page;
      if (begin < 0 || chunk.size < 0 || chunk.values < 0)
        wrong("a chunk of a column must say where it is.", concat(chunk.size, " bytes at ", begin));
      file_.part(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(chunk.size), "a chunk of a column");
      result.chunks.push_back({static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(chunk.size), chunk.values,
                               codec_of(chunk.codec)});
    }
    return result;
  }

  Codec codec_of(std::int64_t codec) const {
    switch (codec) {
      case 0:
        return Codec::None;
      case 1:
        return Codec::Snappy;
      case 2:
        return Codec::Gzip;
      case 6:
        return Codec::Zstd;
      case 7:
        return Codec::Lz4Block;
      default:
        file_.not_read("columns must be uncompressed or packed by snappy, gzip, zstd or lz4_raw.",
                       codec == 3   ? "lzo"
                       : codec == 4 ? "brotli"
                       : codec == 5 ? "the old lz4"
                                    : concat("codec ", codec));
    }
  }

  const ColumnFile& file_;
  std::uint64_t offset_;
  ThriftReader in_;
  std::vector<Element> elements_;
  std::vector<StoredGroup> groups_;
  std::size_t next_ = 0, column_ = 0;  // of elements_; of leaves, those that are not shown too
};

}  // namespace

ParquetFooter read_parquet_footer(const ColumnFile& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  if (text.size() < 12 || !text.starts_with(kParquetMagic) || !text.ends_with(kParquetMagic))
    file.damaged(text.size(), "a parquet file must begin and end with PAR1.", "other bytes");
  std::uint32_t size = 0;
  std::memcpy(&size, text.data() + text.size() - 8, sizeof size);
  if (size > kMaxFooter || size > text.size() - 12)
    file.damaged(text.size() - 8, "the footer must lie in the file.", concat(size, " bytes"));
  const std::uint64_t begin = text.size() - 8 - size;
  return FooterReader(file, begin, file.part(begin, size, "the footer")).read();
}

}  // namespace megatron::data
