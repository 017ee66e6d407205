// Written by rdpgraph.native.records from rdpgraph/engines/loopy/records.py.

#pragma once

#include <cstdint>

namespace {

struct Class {
  int64_t states;
  int64_t variables;
  int64_t edges;
  int64_t variable;
  int64_t edge;
  int64_t message;
  int64_t belief;
  int64_t edge_step;
  int64_t state_step;
};

struct KernelRecord {
  int64_t is_automaton;
  int64_t is_pairs;
  int64_t factors;
  int64_t slots;
  int64_t edges;
  int64_t variables;
  int64_t homes;
  int64_t left;
  int64_t settled;
  int64_t settled_item;
  int64_t sizes;
  int64_t entries;
  int64_t all_entries;
  int64_t logs;
  int64_t logs_item;
  int64_t logs_table;
  int64_t logs_cell;
  int64_t tables;
  int64_t rows;
  int64_t values;
  int64_t values_item;
  int64_t peaks;
  int64_t lows;
  int64_t cells;
  int64_t states;
  int64_t transitions;
  int64_t steps;
  int64_t spread;
  int64_t weights;
};

struct Model {
  int64_t batch;
  int64_t class_count;
  int64_t classes;
  int64_t kernel_count;
  int64_t kernels;
  int64_t variables;
  int64_t factors;
  int64_t edges;
  int64_t entries;
  int64_t beliefs;
  int64_t unary;
  int64_t unary_item;
  int64_t incident_starts;
  int64_t incident;
  int64_t shares;
  int64_t counts;
  int64_t owners;
  int64_t slots;
  int64_t ends;
  int64_t first_factors;
  int64_t vanishing;
  int64_t bounded;
  int64_t reals;
};

struct OddsGroup {
  int64_t factors;
  int64_t first;
  int64_t second;
  int64_t values;
  int64_t values_item;
  int64_t tables;
};

struct OddsModel {
  int64_t maximal;
  int64_t variables;
  int64_t edges;
  int64_t group_count;
  int64_t groups;
  int64_t odds;
  int64_t unary;
  int64_t unary_item;
  int64_t variable;
  int64_t starts;
  int64_t incident;
};

// The bytes of each record, which `record_bytes` of a library returns.
constexpr int64_t kRecordBytes[] = {sizeof(Class), sizeof(KernelRecord), sizeof(Model), sizeof(OddsGroup), sizeof(OddsModel)};

}  // namespace
