// The inner loops, as templates over an instruction set (simd_*.hpp), each compiled in a separate file. Integer sums are exact,
// and floating-point sums have a fixed order, so every instruction set gives the same bits. Compiled without contraction of
// a*b + c.
#pragma once
#include "heads.hpp"
#include "lists.hpp"
#include "places.hpp"
#include "rows.hpp"

namespace coil {
namespace {

template <class S>
const Kernels &kernels() {
    static const Kernels table{add_list<S>, best_products<S>, find_rows<S>, add_rows<S>, pick_rows<S>, find_open<S>, find_above<S>};
    return table;
}

}  // namespace
}  // namespace coil
