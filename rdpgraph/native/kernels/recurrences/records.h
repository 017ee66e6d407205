// Written by rdpgraph.native.records from rdpgraph/recurrences/records.py.

#pragma once

#include <cstdint>

namespace {

enum Kind : int64_t { kKindSum = 0, kKindLink = 1, kKindPair = 2, kKindOver = 3 };

struct Form {
  int64_t c;
  int64_t s;
  int64_t o;
  int64_t q;
  int64_t u;
  int64_t w;
  int64_t p;
  int64_t r;
};

struct Look {
  Form at;
  int64_t slot;
  int64_t item;
  int64_t hop;
  int64_t stride;
  int64_t level;
};

struct FactorRecord {
  Form at;
  Form level;
  int64_t slot;
  int64_t item;
  int64_t hop;
  int64_t level_item;
  int64_t level_hop;
  int64_t look;
  int64_t looks;
  int64_t gather;
  int64_t link;
};

struct Alternative {
  int64_t first;
  int64_t count;
  int64_t bound;
  int64_t bounds;
  int64_t loops;
  int64_t low;
  int64_t high;
  int64_t low2;
  int64_t high2;
  int64_t row;
};

struct Stage {
  int64_t kind;
  int64_t first;
  int64_t count;
  int64_t bound;
  int64_t bounds;
  Form out;
  Form level;
  int64_t item;
  int64_t level_item;
  int64_t labels;
  int64_t labels2;
  int64_t places;
  int64_t wide;
  int64_t wider;
  int64_t widest;
  int64_t depth;
  int64_t depth2;
  Form table;
  int64_t slot;
  int64_t table_item;
  Form table_level;
  int64_t row_level;
  int64_t row2_level;
  int64_t column_level;
  int64_t row;
  int64_t row2;
  int64_t column;
  int64_t column2;
  int64_t fixed;
  int64_t last;
  int64_t look;
  int64_t looks;
  Look rows;
  Look rows2;
  Look columns;
  Look columns2;
  int64_t into;
};

struct Whole {
  int64_t stages;
  int64_t alternatives;
  int64_t factors;
  int64_t looks;
  int64_t forms;
  int64_t steps;
  int64_t size;
  int64_t levels;
};

struct Call {
  int64_t records;
  int64_t steps;
  int64_t cells;
  int64_t apart;
  int64_t counts;
  int64_t slots;
  int64_t items;
  int64_t goals;
};

// The bytes of each record, which `record_bytes` of a library returns.
constexpr int64_t kRecordBytes[] = {sizeof(Form), sizeof(Look), sizeof(FactorRecord), sizeof(Alternative), sizeof(Stage), sizeof(Whole), sizeof(Call)};

}  // namespace
