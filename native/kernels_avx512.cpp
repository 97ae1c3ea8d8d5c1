#define COIL_ISA 5
#include "kernels.hpp"

namespace coil {

const Kernels &avx512_kernels() {
    static const Kernels table{scan, flush, add_rows, pick_rows, bound_rows, find_highest, find_reaching,
                               find_above};
    return table;
}

}  // namespace coil
