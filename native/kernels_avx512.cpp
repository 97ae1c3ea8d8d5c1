#define COIL_ISA 5
#include "kernels.hpp"

namespace coil {

const Kernels &avx512_kernels() {
    static const Kernels table{scan, flush, add_rows, pick_rows, find_open, find_highest, find_above};
    return table;
}

}  // namespace coil
