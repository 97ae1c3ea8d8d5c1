#include "kernels.hpp"
#include "simd_avx2.hpp"

namespace coil {

const Kernels &avx2_kernels() { return kernels<Avx2>(); }

}  // namespace coil
