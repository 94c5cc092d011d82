"""Models in the company of other libraries; each module wants the library after which it is named."""
