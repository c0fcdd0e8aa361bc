#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "megatron/base/error.h"
#include "megatron/data/columns/rows.h"

/// Reads a file of columns by `open`. Every line is one row, whatever the file says; few bytes can stand for billions
/// of rows, so that reading stops early.
inline int read_rows(const std::uint8_t* data, std::size_t size,
                     std::unique_ptr<megatron::data::RowSource> (*open)(megatron::data::ColumnFile)) {
  try {
    const auto rows = open({"input", std::as_bytes(std::span(data, size))});
    std::string lines;
    for (int parts = 0; parts < 8 && rows->next(lines); ++parts) {
      if (lines.empty() || lines.front() != '{' || !lines.ends_with("}\n")) __builtin_trap();
      lines.clear();
    }
    if (rows->position() < 0) __builtin_trap();
  } catch (const megatron::ConfigError&) {
  }
  return 0;
}
