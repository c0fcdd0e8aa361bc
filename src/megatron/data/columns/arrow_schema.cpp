#include "megatron/data/columns/arrow_schema.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

// Of Schema.fbs: the numbers of the union Type.
enum ArrowType : std::uint8_t {
  kTypeNull = 1,
  kTypeInt,
  kTypeFloat,
  kTypeBinary,
  kTypeUtf8,
  kTypeBool,
  kTypeDecimal,
  kTypeDate,
  kTypeTime,
  kTypeTimestamp,
  kTypeInterval,
  kTypeList,
  kTypeStruct,
  kTypeUnion,
  kTypeFixedBinary,
  kTypeFixedList,
  kTypeMap,
  kTypeDuration,
  kTypeLargeBinary,
  kTypeLargeUtf8,
  kTypeLargeList,
  kTypeRunEnd,
  kTypeBinaryView,
  kTypeUtf8View,
  kTypeListView,
  kTypeLargeListView
};

/// The kind, the number of buffers and the width of a field of a type; `details` is the type's own table.
void describe_type(ArrowField& field, std::uint8_t type, const std::optional<FlatTable>& details,
                   const ColumnFile& file) {
  const auto is = [&](ArrowKind kind, int buffers, int width) {
    field.kind = kind;
    field.buffers = buffers;
    field.width = width;
  };
  switch (type) {
    case kTypeNull:
      return is(ArrowKind::Left, 0, 0);
    case kTypeInt: {
      const int bits = details ? details->number<std::int32_t>(0, 0) : 0;
      if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
        file.not_read("whole numbers must have 8, 16, 32 or 64 bits.", concat(bits));
      field.is_signed = details->number<std::uint8_t>(1, 0) != 0;
      return is(ArrowKind::Int, 2, bits / 8);
    }
    case kTypeFloat: {
      const int precision = details ? details->number<std::int16_t>(0, 0) : 0;
      return is(precision == 0 ? ArrowKind::Left : ArrowKind::Float, 2, precision == 1 ? 4 : 8);
    }
    case kTypeBool:
      return is(ArrowKind::Bool, 2, 0);
    case kTypeUtf8:
    case kTypeLargeUtf8:
      return is(ArrowKind::String, 3, type == kTypeUtf8 ? 4 : 8);
    case kTypeBinary:
    case kTypeLargeBinary:
      return is(ArrowKind::Bytes, 3, type == kTypeBinary ? 4 : 8);
    case kTypeUtf8View:
    case kTypeBinaryView:
      field.variadic = true;
      field.is_bytes = type == kTypeBinaryView;
      return is(ArrowKind::View, 2, 16);
    case kTypeList:
    case kTypeLargeList:
      return is(ArrowKind::List, 2, type == kTypeList ? 4 : 8);
    case kTypeMap:
      return is(ArrowKind::Map, 2, 4);
    case kTypeFixedList:
      field.list_size = details ? details->number<std::int32_t>(0, 0) : 0;
      return is(field.list_size > 0 ? ArrowKind::FixedList : ArrowKind::Left, 1, 0);
    case kTypeStruct:
      return is(ArrowKind::Struct, 1, 0);
    case kTypeUnion:
      return is(ArrowKind::Left, details && details->number<std::int16_t>(0, 0) == 1 ? 2 : 1, 0);
    case kTypeRunEnd:
      return is(ArrowKind::Left, 0, 0);
    case kTypeListView:
    case kTypeLargeListView:
      return is(ArrowKind::Left, 3, 0);
    case kTypeDecimal:
    case kTypeDate:
    case kTypeTime:
    case kTypeTimestamp:
    case kTypeInterval:
    case kTypeFixedBinary:
    case kTypeDuration:
      return is(ArrowKind::Left, 2, 0);
    default:
      file.not_read("the types of columns must be known ones.", concat("type ", static_cast<int>(type)));
  }
}

ArrowField read_field(const FlatTable& table, const ColumnFile& file, int nesting, std::size_t& columns) {
  if (nesting > kMaxNesting || ++columns > kMaxColumns)
    file.not_read(concat("there may be at most ", kMaxColumns, " columns, and ", kMaxNesting, " types in types."),
                  "more");
  ArrowField field{.name = std::string(table.string(0))};
  describe_type(field, table.number<std::uint8_t>(2, 0), table.table(3), file);
  for (std::size_t i = 0; i < table.tables(5); ++i)
    field.children.push_back(read_field(table.table_of(5, i), file, nesting + 1, columns));
  const std::size_t children = field.children.size();
  const bool one = field.kind == ArrowKind::List || field.kind == ArrowKind::FixedList || field.kind == ArrowKind::Map;
  if (one && children != 1) file.not_read("a list must have one type of elements.", concat(children));
  if (one && !field.children[0].is_shown()) field.kind = ArrowKind::Left;
  if (field.kind == ArrowKind::Struct &&
      std::none_of(field.children.begin(), field.children.end(), [](const ArrowField& f) { return f.is_shown(); }))
    field.kind = ArrowKind::Left;
  if (const auto encoding = table.table(4)) {
    const auto index = encoding->table(1);
    const int bits = index ? index->number<std::int32_t>(0, 32) : 32;
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
      file.not_read("indices of a dictionary must have 8, 16, 32 or 64 bits.", concat(bits));
    field.dictionary = {encoding->number<std::int64_t>(0, 0), bits / 8};
  }
  return field;
}

}  // namespace

std::vector<ArrowField> read_arrow_schema(const FlatTable& schema, const ColumnFile& file) {
  if (schema.number<std::int16_t>(0, 0) != 0) file.not_read("numbers must be little-endian.", "big-endian ones");
  std::vector<ArrowField> fields;
  std::size_t columns = 0;
  for (std::size_t i = 0; i < schema.tables(1); ++i)
    fields.push_back(read_field(schema.table_of(1, i), file, 0, columns));
  return fields;
}

}  // namespace megatron::data
